"""Runs an emulator as a separate process, and sends it the tests' control requests."""

import json
import os
import signal
import subprocess
import sys
import urllib.request
from typing import Any, Self

_END_SECONDS = 30.0


class Server:
    """Runs `python -m MODULE`, which prints its address and ends when its stdin is closed."""

    def __init__(self, module: str, *options: str) -> None:
        self._module, self._options = module, options
        self.url = ""

    def __enter__(self) -> Self:
        private = ("E2B_", "DAYTONA_", "MODAL_", "SANDBOXKIT_PROVIDER")
        env = {name: value for name, value in os.environ.items() if not name.startswith(private)}
        self._process = subprocess.Popen(
            [sys.executable, "-m", self._module, *self._options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=env,
        )
        assert self._process.stdout is not None
        self.url = self._process.stdout.readline().strip()
        assert self.url, f"{self._module} did not start"
        return self

    def __exit__(self, *exc: object) -> None:
        try:
            self._process.communicate(timeout=_END_SECONDS)
        except subprocess.TimeoutExpired:
            # A forked child of this process may keep open the pipe whose closing would end it.
            self._process.send_signal(signal.SIGCONT)
            self._process.kill()
            self._process.wait()

    def fault(self, request: str, kind: str, **options: Any) -> None:
        """Plan a fault, see `tests.emulators._faults.Rule`."""
        self._ask("fault", {"request": request, "kind": kind, **options})

    def clear(self) -> None:
        """Remove all faults and recorded requests."""
        self._ask("clear")

    def kill_sandboxes(self) -> None:
        """End all sandboxes, as the vendor may do."""
        self._ask("kill")

    def stop_silently(self) -> None:
        """Stop all sandboxes without a reason or a message; their connections stay open."""
        self._ask("stop")

    def break_connections(self) -> None:
        """Abort the connections of all terminals; only for emulators that track them."""
        self._ask("break")

    def cut_next_write(self, *, delivered: bool) -> None:
        """Abort the connection of the next write to a terminal, before it or, if `delivered`, after it."""
        self._ask("cut", delivered)

    def find_slow(self, readers: int) -> None:
        """Disconnect the next `readers` readers of terminals, as too slow for the output."""
        self._ask("slow", readers)

    def ping_every(self, seconds: float) -> None:
        """Ping new connections every `seconds`, and close those that do not reply within that time."""
        self._ask("pings", seconds)

    def limit_cpus(self, cpus: float) -> None:
        """Limit the CPUs of all sandboxes together; only for vendors with quotas."""
        self._ask("cpus", cpus)

    def limit_snapshots(self, most: int) -> None:
        """Let the account have so many snapshots at most, where there is a quota."""
        self._ask("most_snapshots", most)

    def lose_next_snapshot(self) -> None:
        """Let the next snapshot fail after it was begun, for a reason that nobody learns."""
        self._ask("lose_snapshot")

    def deactivate_snapshots(self) -> None:
        """Deactivate all snapshots, as after two weeks without a start."""
        self._ask("deactivate")

    def keep_warm(self) -> None:
        """Let creations from a snapshot return a started sandbox; only for vendors with warm pools."""
        self._ask("warm")

    def end_next_start(self, state: str, output: dict[str, object]) -> None:
        """Let the next sandbox end in `state` before it has started; `output` has further fields of it."""
        self._ask("end", [state, output])

    def login_with(self, line: str) -> None:
        """Let the login shells of terminals run this line first, like a line of /etc/profile."""
        self._ask("profile", line)

    @property
    def terminals(self) -> int:
        """Return the number of terminals in all sandboxes; only for emulators that track them."""
        found: int = self._ask("state")["terminals"]
        return found

    @property
    def alive(self) -> list[str]:
        """Return the ids of the running sandboxes."""
        found: list[str] = self._ask("state")["alive"]
        return found

    @property
    def networks(self) -> list[Any]:
        """Return the allow lists with which the running sandboxes were created."""
        found: list[Any] = self._ask("state")["networks"]
        return found

    @property
    def requests(self) -> list[str]:
        """Return the requests since `clear`, each as "METHOD /path"."""
        found: list[str] = self._ask("state")["requests"]
        return found

    @property
    def violations(self) -> list[str]:
        """Return the parts of requests that the vendor's models do not define."""
        found: list[str] = self._ask("state")["violations"]
        return found

    def _ask(self, what: str, body: Any = None) -> Any:
        request = urllib.request.Request(
            f"{self.url}/_emulator/{what}", json.dumps(body).encode(), method="POST"
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.loads(answer.read())

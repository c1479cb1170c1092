"""An emulator in a process of its own, as the tests see it."""

import json
import os
import signal
import subprocess
import sys
import urllib.request
from typing import Any, Self

_END_SECONDS = 30.0


class Server:
    """Runs `python -m MODULE`, which prints its address and ends with its standard input."""

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
            # A forked child of this process may hold the pipe that was to end it.
            self._process.send_signal(signal.SIGCONT)
            self._process.kill()
            self._process.wait()

    def fault(self, request: str, kind: str, **options: Any) -> None:
        """Let requests fail, see `tests.emulators._faults.Rule`."""
        self._ask("fault", {"request": request, "kind": kind, **options})

    def clear(self) -> None:
        """Forget faults and requests."""
        self._ask("clear")

    def kill_sandboxes(self) -> None:
        """End every sandbox, as the vendor does when it has to."""
        self._ask("kill")

    def stop_silently(self) -> None:
        """Stop every sandbox without a reason or a message; its connections stay open."""
        self._ask("stop")

    def break_connections(self) -> None:
        """Abort every connection that a terminal has, where the emulator knows of them."""
        self._ask("break")

    def cut_next_write(self, *, delivered: bool) -> None:
        """Abort the connection over which a terminal is next written to, before it or after."""
        self._ask("cut", delivered)

    def find_slow(self, readers: int) -> None:
        """Drop so many readers of terminals, one after the other, as too slow for their output."""
        self._ask("slow", readers)

    def ping_every(self, seconds: float) -> None:
        """Ping new connections so often, and close those that do not answer as soon."""
        self._ask("pings", seconds)

    def limit_cpus(self, cpus: float) -> None:
        """Let all sandboxes together have so many processors at most, where there are quotas."""
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
        """Let creations from a snapshot answer with a sandbox that has started, where there are pools."""
        self._ask("warm")

    def end_next_start(self, state: str, output: dict[str, object]) -> None:
        """Let the next sandbox end in this state before it has started, and say this of it."""
        self._ask("end", [state, output])

    def login_with(self, line: str) -> None:
        """Let the login shells of terminals run this line first, as an image's profile."""
        self._ask("profile", line)

    @property
    def terminals(self) -> int:
        """How many terminals there are in all sandboxes, where the emulator knows of them."""
        found: int = self._ask("state")["terminals"]
        return found

    @property
    def alive(self) -> list[str]:
        """The ids of the sandboxes that live."""
        found: list[str] = self._ask("state")["alive"]
        return found

    @property
    def networks(self) -> list[Any]:
        """The lists of allowed servers that the living sandboxes were made with."""
        found: list[Any] = self._ask("state")["networks"]
        return found

    @property
    def requests(self) -> list[str]:
        """What was asked since `clear`, each as "METHOD /path"."""
        found: list[str] = self._ask("state")["requests"]
        return found

    @property
    def violations(self) -> list[str]:
        """What the vendor's models do not know."""
        found: list[str] = self._ask("state")["violations"]
        return found

    def _ask(self, what: str, body: Any = None) -> Any:
        request = urllib.request.Request(
            f"{self.url}/_emulator/{what}", json.dumps(body).encode(), method="POST"
        )
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.loads(answer.read())

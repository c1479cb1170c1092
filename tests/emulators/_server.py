"""Runs an emulator as a separate process, and sends it the tests' control requests."""

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import IO, Any, Self

_ROOT = Path(__file__).resolve().parents[2]
_END_SECONDS = 30.0


class Controlled:
    """A running emulator; `url` is its address for the SDK."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._process = process
        self._requests: IO[str] = process.stdin
        self._answers: IO[str] = process.stdout
        self._asking = threading.Lock()
        self.url = self._answers.readline().strip()
        assert self.url, "the emulator did not start"

    # Any: JSON, as each method of the emulator in its __main__ returns it.
    def ask(self, request: str, **arguments: object) -> Any:
        """Call a method of the emulator in its `__main__`, and return its result."""
        with self._asking:
            print(json.dumps([request, arguments]), file=self._requests, flush=True)
            return json.loads(self._answers.readline())

    def fault(self, name: str, kind: str, **rule: object) -> None:
        """Plan a fault for the requests of this name: see `tests.faults._plan.KINDS` and `Rule`."""
        self.ask("plan", name=name, kind=kind, **rule)


def started(module: str, *options: str) -> "subprocess.Popen[str]":
    """Run `python -m MODULE`, which prints its address and ends when its stdin is closed."""
    private = ("E2B_", "DAYTONA_", "MODAL_", "SANDBOXKIT_PROVIDER")
    return subprocess.Popen(
        [sys.executable, "-m", module, *options],
        cwd=_ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={name: value for name, value in os.environ.items() if not name.startswith(private)},
    )


def ended(process: "subprocess.Popen[str]") -> None:
    """Let an emulator end."""
    try:
        process.communicate(timeout=_END_SECONDS)
    except subprocess.TimeoutExpired:
        # A forked child of this process may keep open the pipe whose closing would end it.
        process.send_signal(signal.SIGCONT)
        process.kill()
        process.wait()


class Server(Controlled):
    """An emulator of E2B or Daytona. What the tests set here is taken back by `clear`."""

    def __init__(self, module: str, *options: str) -> None:
        self._module, self._options = module, options

    def __enter__(self) -> Self:
        super().__init__(started(self._module, *self._options))
        return self

    def __exit__(self, *exc: object) -> None:
        ended(self._process)

    def clear(self) -> None:
        """Remove all faults, settings and recorded requests."""
        self.ask("clear")

    # Any: what a setting of the emulator is.
    def set(self, name: str, value: Any = True) -> None:
        """Change a setting: see `Settings` of each emulator."""
        self.ask("set", name=name, value=value)

    def kill_sandboxes(self) -> None:
        """End all sandboxes, as the vendor may do."""
        self.ask("kill_all")

    def stop_silently(self) -> None:
        """Stop all sandboxes without a reason or a message; their connections stay open."""
        self.ask("stop_silently")

    def break_connections(self) -> None:
        """Abort the connections of all terminals; only for emulators that track them."""
        self.ask("cut_all")

    def cut_next_write(self, *, delivered: bool) -> None:
        """Abort the connection of the next write to a terminal, before it or, if `delivered`, after it."""
        self.set("cut", delivered)

    def find_slow(self, readers: int) -> None:
        """Disconnect the next `readers` readers of terminals, as too slow for the output."""
        self.set("slow", readers)

    def ping_every(self, seconds: float) -> None:
        """Ping new connections every `seconds`, and close those that do not reply within that time."""
        self.ask("pings", seconds=seconds)

    def limit_cpus(self, cpus: float) -> None:
        """Limit the CPUs of all sandboxes together; only for vendors with quotas."""
        self.set("cpus", cpus)

    def limit_snapshots(self, most: int) -> None:
        """Let the account have so many snapshots at most, where there is a quota."""
        self.set("most_snapshots", most)

    def lose_next_snapshot(self) -> None:
        """Let the next snapshot fail after it was begun, for a reason that nobody learns."""
        self.set("loses_snapshot")

    def deactivate_snapshots(self) -> None:
        """Deactivate all snapshots, as after two weeks without a start."""
        self.ask("deactivate")

    def keep_warm(self) -> None:
        """Let creations from a snapshot return a started sandbox; only for vendors with warm pools."""
        self.set("warm")

    def end_next_start(self, state: str, output: dict[str, object]) -> None:
        """Let the next sandbox end in `state` before it has started; `output` has further fields of it."""
        self.set("end", [state, output])

    def login_with(self, line: str) -> None:
        """Let the login shells of terminals run this line first, like a line of /etc/profile."""
        self.set("profile", line)

    @property
    def terminals(self) -> int:
        """Return the number of terminals in all sandboxes; only for emulators that track them."""
        return int(self.ask("state")["terminals"])

    @property
    def alive(self) -> list[str]:
        """Return the ids of the running sandboxes."""
        return list(self.ask("state")["alive"])

    @property
    def networks(self) -> list[Any]:
        """Return the allow lists with which the running sandboxes were created."""
        return list(self.ask("state")["networks"])

    @property
    def requests(self) -> list[str]:
        """Return the requests since `clear`, each as "METHOD /path"."""
        return list(self.ask("state")["requests"])

    @property
    def violations(self) -> list[str]:
        """Return the parts of requests that the vendor's models do not define."""
        return list(self.ask("state")["violations"])

    def _ask(self, name: str, value: Any = True) -> Any:
        return self.ask("state") if name == "state" else self.set(name, value)

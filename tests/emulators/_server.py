"""Runs an emulator as a separate process, and sends it the tests' control requests."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any, Self

_ROOT = Path(__file__).resolve().parents[2]
_END_SECONDS = 30.0
_PRIVATE = ("E2B_", "DAYTONA_", "MODAL_", "SANDBOXKIT_PROVIDER")


class Server:
    """An emulator; `url` is its address for the SDK. What the tests change here is taken back by `clear`."""

    process: "subprocess.Popen[str]"
    url: str

    def __init__(self, module: str, *options: str) -> None:
        self._module, self.options = module, options
        self._asking = threading.Lock()

    def __enter__(self) -> Self:
        env = {key: text for key, text in os.environ.items() if not key.startswith(_PRIVATE)}
        # Its snapshots stay as long as it runs: in the machine's folder another run would find them left behind.
        self._state = tempfile.TemporaryDirectory(prefix="e-", ignore_cleanup_errors=True)
        self.process = subprocess.Popen(
            [sys.executable, "-m", self._module, *self.options],
            cwd=_ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=env | {"SANDBOXKIT_STATE_DIR": self._state.name},
        )
        assert self.process.stdout is not None
        self.url = self.process.stdout.readline().strip()
        assert self.url, "the emulator did not start"
        return self

    def __exit__(self, *exc: object) -> None:
        try:
            self.process.communicate(timeout=_END_SECONDS)
        except subprocess.TimeoutExpired:
            # A forked child of this process may keep open the pipe whose closing would end it.
            self.process.send_signal(signal.SIGCONT)
            self.process.kill()
            self.process.wait()
        self._state.cleanup()

    # Any: JSON, as each method of the emulator in its __main__ returns it.
    def ask(self, request: str, **arguments: object) -> Any:
        """Call a method of the emulator in its `__main__`, and return its result."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        with self._asking:
            print(json.dumps([request, arguments]), file=self.process.stdin, flush=True)
            return json.loads(self.process.stdout.readline())

    def fault(self, name: str, kind: str, **rule: object) -> None:
        """Plan a fault for the requests of this name: see `tests.faults._plan.KINDS` and `Rule`."""
        self.ask("plan", name=name, kind=kind, **rule)

    def set(self, **settings: object) -> None:
        """Change settings: see `Settings` of each emulator."""
        self.ask("set", **settings)

    def clear(self) -> None:
        """Remove all faults, settings and recorded requests."""
        self.ask("clear")

    def kill_sandboxes(self) -> None:
        """End all sandboxes, as the vendor may do."""
        self.ask("kill_all")

    def break_connections(self) -> None:
        """Abort the connections that carry programs."""
        self.ask("break_connections")

    @property
    def state(self) -> dict[str, Any]:
        """What the emulator has seen, and what runs: see its `state`."""
        return dict(self.ask("state"))

    @property
    def alive(self) -> list[str]:
        """The ids of the running sandboxes."""
        return list(self.state["alive"])

    @property
    def requests(self) -> list[str]:
        """The requests since `clear`: "METHOD /path", or the names of calls."""
        return list(self.state["requests"])

    @property
    def violations(self) -> list[str]:
        """The parts of requests that the vendor's models do not define."""
        return list(self.state["violations"])

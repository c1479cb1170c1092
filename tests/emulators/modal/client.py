"""Runs the emulator as a separate process, and sends it control requests."""

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import pytest

_ROOT = Path(__file__).resolve().parents[3]


class ModalEmulator:
    """A running emulator; `url` is its address for the SDK."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        assert process.stdin is not None
        assert process.stdout is not None
        self._requests: IO[str] = process.stdin
        self._answers: IO[str] = process.stdout
        self.url = self._answers.readline().strip()

    # Any: JSON, as each call of `Emulator` in __main__ returns it.
    def ask(self, request: str, **arguments: object) -> Any:
        """Call a method of `Emulator` in `__main__`, and return its result."""
        print(json.dumps([request, arguments]), file=self._requests, flush=True)
        return json.loads(self._answers.readline())

    def fault(self, call: str, kind: str, **rule: object) -> None:
        """Plan a fault; see `_faults.Rule`."""
        self.ask("fault", call=call, kind=kind, **rule)

    def running(self) -> list[str]:
        """Return the ids of the sandboxes that have not ended."""
        running: list[str] = self.ask("running")
        return running


@contextmanager
def modal_emulator() -> Iterator[ModalEmulator]:
    """Run an emulator, with the SDK's environment variables pointing to it.

    Fails the test at the end for invalid calls and for sandboxes that are left over.
    """
    command = [sys.executable, "-m", "tests.emulators.modal"]
    with (
        subprocess.Popen(
            command, cwd=_ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as process,
        pytest.MonkeyPatch.context() as patch,
    ):
        emulator = ModalEmulator(process)
        patch.setenv("MODAL_SERVER_URL", emulator.url)
        patch.setenv("MODAL_TOKEN_ID", "ak-emulator")
        patch.setenv("MODAL_TOKEN_SECRET", "as-emulator")
        yield emulator
        emulator.ask("calm")
        if wrong := emulator.ask("violations"):
            pytest.fail(f"the emulator received invalid calls: {wrong}")
        if left := emulator.running():
            pytest.fail(f"sandboxes were left over: {left}")

"""The harness' end of a side: a process that is told what to open and when to take its turn."""

import contextlib
import json
import os
import select
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

from benchmarks.report.machine import MARKER

ROOT = Path(__file__).resolve().parents[2]


class SideError(Exception):
    """A side failed, was too slow, or a command printed what it must not."""


class Side:
    """One process of `benchmarks.sides`; every wait for it is bounded, and `close` ends it."""

    def __init__(self, module: str, python: Path, marker: str) -> None:
        self._buffer = b""
        self._process = subprocess.Popen(
            [python, "-P", "-m", f"benchmarks.sides.{module}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT), MARKER: marker},
            start_new_session=True,
        )
        try:
            hello = self._answer(60)
        except SideError:
            self.close()
            raise
        self.version: str = hello["version"]
        self.measures: list[str] = hello["measures"]

    def open(self, measure: str, arguments: dict[str, Any], timeout: float = 60) -> None:
        """Make what a measure needs. Raises SideError."""
        self._ask({"do": "open", "measure": measure, "arguments": arguments}, timeout)

    def turn(self, times: int, in_flight: int, timeout: float = 60) -> dict[str, float]:
        """Do the work; what it took. Raises SideError, and nothing is open then."""
        return self._ask({"do": "turn", "times": times, "in_flight": in_flight}, timeout)

    def shut(self, timeout: float = 60) -> None:
        """Remove what `open` made. Raises SideError."""
        self._ask({"do": "close"}, timeout)

    def close(self) -> None:
        """End the process, by force if it does not end when its input does."""
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._kill()

    def _kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def _ask(self, request: dict[str, Any], timeout: float) -> dict[str, Any]:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(request).encode() + b"\n")
            self._process.stdin.flush()
        except OSError as error:
            raise SideError(f"it has ended with {self._process.poll()}") from error
        return self._answer(timeout)

    def _answer(self, timeout: float) -> dict[str, Any]:
        assert self._process.stdout is not None
        deadline = time.monotonic() + timeout
        while b"\n" not in self._buffer:
            ready, _, _ = select.select(
                [self._process.stdout], [], [], max(0.0, deadline - time.monotonic())
            )
            if not ready:
                self._kill()
                raise SideError(f"no answer in {timeout:g} s")
            data = os.read(self._process.stdout.fileno(), 1 << 16)
            if not data:
                raise SideError(f"it ended with {self._process.wait()} instead of an answer")
            self._buffer += data
        line, self._buffer = self._buffer.split(b"\n", 1)
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise SideError(answer["error"])
        return answer

"""Providers for the pool's tests: they count, wait, fail and reset."""

import asyncio
import math
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from traceback import extract_stack
from typing import ClassVar, TypeVar

import pytest

from sandboxkit import Operation, Session
from sandboxkit.errors import ProviderUnavailableError, SandboxError, SandboxNotCleanError
from sandboxkit.provider import FirstCommand, Output
from sandboxkit.testing.fake import FakeBox, FakeProvider
from sandboxkit.types import Command, Exit, Interpreter, PoolStats, SandboxSpec

DEADLINE = 60.0
T = TypeVar("T")


def on_the_loop(call: Callable[[], T]) -> T:
    """Make a call on the background loop, after what is there already."""

    async def run() -> T:
        return call()

    return Operation(run()).result(DEADLINE)


def interrupt(begun: threading.Semaphore) -> threading.Thread:
    """Send this program's first thread a Ctrl-C once `begun` and while it waits for a result."""
    first = threading.main_thread().ident
    assert first is not None

    def send() -> None:
        assert begun.acquire(timeout=DEADLINE)
        seen: int | None = None
        while True:  # until it is at one place twice: a signal just before it blocks would be lost
            time.sleep(0.02)
            frame = sys._current_frames()[first]
            names = [each.name for each in extract_stack(frame)]
            waits = "result" in names and names[-1] == "wait"
            if waits and frame.f_lasti == seen:
                break
            seen = frame.f_lasti if waits else None
        signal.pthread_kill(first, signal.SIGINT)

    thread = threading.Thread(target=send)
    thread.start()
    return thread


def line_of(process: "subprocess.Popen[str]") -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


class Counting(FakeProvider):
    """Keeps the ids of all that were created, and raises what it is told to first."""

    def __init__(self, *errors: SandboxError, kind: type[FakeBox] = FakeBox) -> None:
        super().__init__(kind)
        self.created: list[str] = []
        self.attempts: list[float] = []
        self.errors = list(errors)

    async def create(self, spec: SandboxSpec, first: FirstCommand | None = None) -> FakeBox:
        self.attempts.append(time.monotonic())
        if self.errors:
            raise self.errors.pop(0)
        box = await super().create(spec, first)
        self.created.append(box.id)
        return box


class Here(Counting):
    """Has sandboxes on this machine."""

    on_this_machine: ClassVar[bool] = True


class Failing(FakeProvider):
    """Fails to delete anything, so many times."""

    def __init__(self, failures: float = math.inf) -> None:
        super().__init__(_FailingBox)
        self.failures, self.attempts = failures, 0


class _FailingBox(FakeBox):
    async def delete(self) -> None:
        assert isinstance(self.provider, Failing)
        self.provider.attempts += 1
        if self.provider.failures > 0:
            self.provider.failures -= 1
            raise ProviderUnavailableError("the connection was reset")
        await super().delete()


@pytest.fixture
def own_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of the test's own for what sandboxkit keeps on this machine."""
    monkeypatch.setenv("SANDBOXKIT_STATE_DIR", str(tmp_path / "state"))
    return tmp_path / "state"


class Gated(Counting):
    """Holds each creation, at its beginning or at its end, until the gate is open."""

    def __init__(self, *, at_end: bool = False, kind: type[FakeBox] = FakeBox) -> None:
        super().__init__(kind=kind)
        self.entered, self.undone = threading.Semaphore(0), threading.Semaphore(0)
        self.gate = asyncio.Event()
        self.at_end = at_end
        self.creates = 0

    def open(self) -> None:
        """Let every creation go on."""
        on_the_loop(self.gate.set)

    async def create(self, spec: SandboxSpec, first: FirstCommand | None = None) -> FakeBox:
        self.creates += 1
        box = await super().create(spec, first) if self.at_end else None
        self.entered.release()
        try:
            await self.gate.wait()
        except BaseException:
            if box is not None:
                await box.delete()
            self.undone.release()
            raise
        return box or await super().create(spec, first)


class Resetting(Counting):
    """Resets for real what a folder has: its processes and files. The first call counts none.

    A file called `dirt` cannot be removed, `slow` holds the reset up until it fails.
    """

    name: ClassVar[str] = "resetting"

    def __init__(self, kind: "type[ResettingBox] | None" = None) -> None:
        super().__init__(kind=kind or ResettingBox)
        self.resets = 0
        self.programs: list[str] = []
        """The interpreters that were started."""
        self.fail = asyncio.Event()


class ResettingBox(FakeBox):
    """One sandbox of a Resetting provider."""

    recorded = False
    program = ""

    async def start_interpreter(self, interpreter: Interpreter) -> None:
        assert not self.recorded
        assert isinstance(self.provider, Resetting)
        self.program = interpreter.program
        self.provider.programs.append(self.program)

    async def run_python(self, code: str, command: Command, output: Output) -> Exit:
        argv = (self.program, "-I", "-c", code, *command.argv[1:])
        return await self.exec(replace(command, argv=argv, user=None), output)

    async def reset(self) -> None:
        if not self.recorded:
            self.recorded = True
            return
        self.there()
        assert isinstance(self.provider, Resetting)
        await self._kill(f"box:{self.folder}", None)
        workspace = Path(self.folder, "workspace")
        if Path(workspace, "dirt").exists():
            raise SandboxNotCleanError("/workspace/dirt")
        if Path(workspace, "slow").exists():
            await self.provider.fail.wait()
            raise SandboxNotCleanError("/workspace/slow")
        for path in workspace.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        self.provider.resets += 1


def until(session: Session, holds: Callable[[PoolStats], bool]) -> PoolStats:
    """Wait until it holds of the session's pool."""
    deadline = time.monotonic() + DEADLINE
    while not holds(stats := session.pool_stats()):
        assert time.monotonic() < deadline, stats
        time.sleep(0.002)
    return stats


def settled(session: Session, provider: FakeProvider) -> None:
    """Whoever starts now is served; once the session is closed, nothing is there."""
    assert session.run(["true"]).result(DEADLINE).returncode == 0
    session.close().result(DEADLINE)
    assert not provider.boxes
    assert not session._sandboxes

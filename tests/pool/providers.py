"""Providers for the pool's tests: they count, wait, fail and reset."""

import asyncio
import math
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from traceback import extract_stack
from typing import ClassVar, TypeVar

import pytest

from sandboxkit import Operation, Session, _machine_semaphore
from sandboxkit.errors import ProviderUnavailableError, SandboxError, SandboxNotCleanError
from sandboxkit.provider import Output
from sandboxkit.testing import FakeProvider
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

    def __init__(self, *errors: SandboxError) -> None:
        super().__init__()
        self.created: list[str] = []
        self.attempts: list[float] = []
        self.errors = list(errors)

    async def create(self, spec: SandboxSpec) -> str:
        self.attempts.append(time.monotonic())
        if self.errors:
            raise self.errors.pop(0)
        sandbox_id = await super().create(spec)
        self.created.append(sandbox_id)
        return sandbox_id


class Here(Counting):
    """Has sandboxes on this machine."""

    on_this_machine: ClassVar[bool] = True


class Failing(FakeProvider):
    """Fails to delete anything, so many times."""

    def __init__(self, failures: float = math.inf) -> None:
        super().__init__()
        self.failures, self.attempts = failures, 0

    async def delete(self, sandbox_id: str) -> None:
        self.attempts += 1
        if self.failures > 0:
            self.failures -= 1
            raise ProviderUnavailableError("the connection was reset")
        await super().delete(sandbox_id)


@pytest.fixture
def own_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of the test's own for what sandboxkit keeps on this machine."""
    monkeypatch.setenv("SANDBOXKIT_STATE_DIR", str(tmp_path / "state"))
    yield tmp_path / "state"
    _machine_semaphore._forget()  # the next test has another folder


class Gated(Counting):
    """Holds each creation, at its beginning or at its end, until the gate is open."""

    def __init__(self, *, at_end: bool = False) -> None:
        super().__init__()
        self.entered, self.undone = threading.Semaphore(0), threading.Semaphore(0)
        self.gate = asyncio.Event()
        self.at_end = at_end
        self.creates = 0

    def open(self) -> None:
        """Let every creation go on."""
        on_the_loop(self.gate.set)

    async def create(self, spec: SandboxSpec) -> str:
        self.creates += 1
        sandbox_id = await super().create(spec) if self.at_end else ""
        self.entered.release()
        try:
            await self.gate.wait()
        except BaseException:
            if sandbox_id:
                await self.delete(sandbox_id)
            self.undone.release()
            raise
        return sandbox_id or await super().create(spec)


class Resetting(Counting):
    """Resets for real what a folder has: its processes and files. The first call counts none.

    A file called `dirt` cannot be removed, `slow` holds the reset up until it fails.
    """

    name: ClassVar[str] = "resetting"

    def __init__(self) -> None:
        super().__init__()
        self.inventories: set[str] = set()
        self.resets = 0
        self.interpreters: dict[str, Interpreter] = {}
        self.fail = asyncio.Event()

    async def start_interpreter(self, sandbox_id: str, interpreter: Interpreter) -> None:
        assert sandbox_id not in self.inventories
        self.interpreters[sandbox_id] = interpreter

    async def run_python(
        self, sandbox_id: str, code: str, command: Command, output: Output
    ) -> Exit:
        program = self.interpreters[sandbox_id].program
        argv = (program, "-I", "-c", code, *command.argv[1:])
        return await self.exec(
            sandbox_id, Command(argv, command.cwd, command.env, None, command.stdin), output
        )

    async def reset(self, sandbox_id: str) -> None:
        if sandbox_id not in self.inventories:
            self.inventories.add(sandbox_id)
            return
        box = self._box(sandbox_id)
        await self._kill(f"box:{box.folder}", None)
        workspace = Path(box.folder, "workspace")
        if Path(workspace, "dirt").exists():
            raise SandboxNotCleanError("/workspace/dirt", sandbox_id=sandbox_id)
        if Path(workspace, "slow").exists():
            await self.fail.wait()
            raise SandboxNotCleanError("/workspace/slow", sandbox_id=sandbox_id)
        for path in workspace.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        self.resets += 1


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
    assert not provider._boxes
    assert not session._sandboxes

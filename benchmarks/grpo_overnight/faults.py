"""The local provider, of whose sandboxes and runs a share really dies: processes are sent SIGKILL.

A process of its own starts it by name: `install` writes an entry point for it into a folder that goes
on PYTHONPATH, so that the program under test is the user's, with `grading.provider=overnight`. The
errors that follow are those of the local provider; none is made here.
"""

import asyncio
import json
import os
import random
import signal
import threading
import time
from contextlib import suppress
from pathlib import Path

from benchmarks.grpo_overnight.measures import parent
from sandboxkit.provider import Output
from sandboxkit.providers.local import LocalProvider
from sandboxkit.types import Command, Exit, SandboxSpec

__all__ = ["NAME", "Failing", "environment", "injected", "install"]

NAME = "overnight"
_VARIABLE = "SANDBOXKIT_OVERNIGHT"
_LATEST = 0.02
"""Seconds into a run at which its sandbox dies; where it has ended by then, after it."""
_WRITE_EVERY = 1.0


def install(folder: Path) -> None:
    """Make `NAME` a provider for processes with this folder on PYTHONPATH."""
    about = folder / f"{NAME}-1.dist-info"
    about.mkdir(parents=True, exist_ok=True)
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {NAME}\nVersion: 1\n")
    place = f"{NAME} = {__name__}:{Failing.__name__}\n"
    (about / "entry_points.txt").write_text(f"[sandboxkit.providers]\n{place}")


def environment(counts: Path, rate: float, seed: int) -> dict[str, str]:
    """For a process that is to have such failures; `counts` is a folder for what was injected."""
    counts.mkdir(parents=True, exist_ok=True)
    return {_VARIABLE: json.dumps([str(counts), rate, seed])}


def injected(counts: Path) -> dict[str, int]:
    """How many there were of each kind, in all processes so far, and of what."""
    total: dict[str, int] = {}
    for path in sorted(counts.glob("*.json")):
        for kind, count in json.loads(path.read_text()).items():
            total[kind] = total.get(kind, 0) + count
    return total


class Failing(LocalProvider):
    """Sandboxes die as they start, or have died when they come; and under what they run."""

    def __init__(self) -> None:
        super().__init__()
        folder, self._rate, seed = json.loads(os.environ[_VARIABLE])
        self._path = Path(folder) / f"{os.getpid()}-{time.time_ns()}.json"
        self._numbers = random.Random(f"{seed} {self._path.name}")
        self._first, self._written = True, 0.0
        self._counts: dict[str, int] = dict.fromkeys(
            ("created", "not made", "dead on arrival", "runs", "lost"), 0
        )

    async def create(self, spec: SandboxSpec) -> str:
        # The first one is the program's look whether sandboxes work at all.
        spared, self._first = self._first or self._numbers.random() >= self._rate, False
        self._note("created")
        if spared:
            return await super().create(spec)
        if self._numbers.random() < 0.5:
            self._note("not made")
            over = threading.Event()
            killer = threading.Thread(target=_kill_the_newborn, args=(over,), daemon=True)
            killer.start()
            try:
                return await super().create(spec)
            finally:
                over.set()
        self._note("dead on arrival")
        sandbox_id = await super().create(spec)
        self._kill(sandbox_id, 0.0)
        return sandbox_id

    async def run_python(
        self, sandbox_id: str, code: str, command: Command, output: Output
    ) -> Exit:
        self._strike(sandbox_id)
        return await super().run_python(sandbox_id, code, command, output)

    async def exec(self, sandbox_id: str, command: Command, output: Output) -> Exit:
        self._strike(sandbox_id)
        return await super().exec(sandbox_id, command, output)

    async def aclose(self) -> None:
        await super().aclose()
        self._write()

    def _strike(self, sandbox_id: str) -> None:
        self._note("runs")
        if self._numbers.random() < self._rate:
            self._note("lost")
            self._kill(sandbox_id, self._numbers.uniform(0, _LATEST))

    def _kill(self, sandbox_id: str, after: float) -> None:
        pid = self._agent_pid(sandbox_id)
        if pid is None:
            return
        with suppress(ProcessLookupError):
            pidfd = os.pidfd_open(pid)
            asyncio.get_running_loop().call_later(after, _end, pidfd)

    def _note(self, kind: str) -> None:
        self._counts[kind] += 1
        if time.monotonic() - self._written > _WRITE_EVERY:
            self._write()

    def _write(self) -> None:
        self._written = time.monotonic()
        whole = self._path.with_suffix(".new")
        whole.write_text(json.dumps(self._counts))
        whole.replace(self._path)


def _end(pidfd: int) -> None:
    with suppress(ProcessLookupError):
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
    os.close(pidfd)


def _kill_the_newborn(over: threading.Event) -> None:
    """SIGKILL for the next process that this one starts."""
    known = set(os.listdir("/proc"))
    while not over.is_set():
        for name in set(os.listdir("/proc")) - known:
            known.add(name)
            if name.isdigit() and parent(int(name)) == os.getpid():
                with suppress(ProcessLookupError):
                    os.kill(int(name), signal.SIGKILL)
                return
        time.sleep(0.0005)

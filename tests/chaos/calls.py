"""Thousands of calls whose connections break: each returns or raises a typed error, in time."""

import random
import secrets
import tempfile
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sandboxkit import Operation, Sandbox, SandboxError, Session
from sandboxkit.errors import SandboxNotFoundError, SandboxTerminatedError
from tests import faults
from tests.faults import Direction, Drop, FaultProxy, Half, Late, Reset, Stall, too_many_requests

TAG = f"chaos:{secrets.token_hex(8)}"
"""The tag of this process's sandboxes: other processes may test the same Docker daemon."""
SECONDS = 10.0
"""In which an infrastructure error has to be known; a command's own `timeout` comes on top."""
_GRACE = 2.0
_BUSY = 8.0
"""What a busy machine may take beyond that. Less than what a call takes whose deadline is the next longer one."""
_HANG = 60.0
"""For what is over its deadline to end at all."""
_TALLYING = threading.Lock()
_DIRECTIONS: tuple[Direction, ...] = ("request", "answer", "both")
_BEFORE = (Reset(), Late(0.3), too_many_requests(0.1), faults.HttpAnswer(500, b"{}"), Stall())
_AFTER = (Drop(), Drop("reset"), Drop("stall"), Half(12), Half(200), Half(5000), Stall("answer"))

# Any: operations of every result type.
Call = tuple[int, str, float, Callable[[], Operation[Any]]]


def weather(seed: int, share: float) -> faults.Plan:
    """A plan of all faults, for a `share` of the HTTP requests and half of all else."""

    def plan(request: faults.Request) -> faults.Fault | None:
        chance = random.Random(f"{seed}:{request.number}")
        if request.line:
            if chance.random() >= share:
                return None
            return chance.choice(_BEFORE if chance.random() < 0.5 else _AFTER)
        if chance.random() < 0.5:
            return None
        # A connection of many calls: it breaks after some of them.
        return Half(int(10 ** chance.uniform(1, 5))) if chance.random() < 0.7 else Stall("answer")

    return plan


@contextmanager
def storm(proxies: Sequence[FaultProxy], seed: int, pause: float) -> Iterator[None]:
    """Reset or stall all of these at once, again and again, every `pause` seconds on an average."""
    chance, over = random.Random(f"storm {seed}"), threading.Event()

    def blow() -> None:
        while not over.wait(chance.uniform(0, 2 * pause)):
            if chance.random() < 0.7:
                for proxy in list(proxies):
                    proxy.reset()
                continue
            direction = chance.choice(_DIRECTIONS)
            for proxy in list(proxies):
                proxy.stall(direction)
            # Now and then longer than anybody may wait.
            over.wait(SECONDS + 2 * _GRACE if chance.random() < 0.1 else chance.uniform(0.1, 3))
            for proxy in list(proxies):
                proxy.resume()

    thread = threading.Thread(target=blow, name="storm")
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def menu(session: Session, box: Sandbox, chance: random.Random, folder: Path) -> list[Call]:
    """What can be done with a sandbox: how often, its name, its timeout, and how. `folder/up` is uploaded."""
    path = f"/workspace/{chance.randrange(3)}"
    target = folder / f"{chance.randrange(10**12)}"
    size = chance.choice([0, 100, 200_000])
    return [
        (4, "exec", 0, lambda: box.exec(["sh", "-c", "echo out; echo err >&2"])),
        (2, "exec with timeout", 0.3, lambda: box.exec(["sleep", "100"], timeout=0.3)),
        (2, "exec with stdin", 0, lambda: box.exec(["cat"], stdin=bytes(size))),
        (1, "exec on a terminal", 0, lambda: box.exec(["tty"], pty=True)),
        (3, "write", 0, lambda: box.write_file(path, bytes(size))),
        (3, "read", 0, lambda: box.read_file(path)),
        (1, "upload", 0, lambda: box.upload(folder / "up", "/workspace/up")),
        (1, "download", 0, lambda: box.download("/workspace", target)),
        (1, "list files", 0, lambda: box.list_dir("/workspace")),
        (1, "list", 0, lambda: session.list(TAG)),
        (1, "get", 0, box.status),
        (1, "wait", 0, box.wait),
        (1, "delete", 0, box.stop),
    ]


def fill(folder: Path) -> None:
    (folder / "up").mkdir(parents=True)
    (folder / "up" / "file").write_bytes(bytes(50_000))


@dataclass(slots=True)
class Tally:
    """How calls ended."""

    calls: Counter[str] = field(default_factory=Counter)
    outcomes: Counter[str] = field(default_factory=Counter)
    untyped: list[str] = field(default_factory=list)
    late: list[str] = field(default_factory=list)
    """Calls that were over their deadline, the grace of two seconds, and what a busy machine takes."""
    longest: float = 0.0
    """The most seconds that a call took beyond its own timeout."""
    last: float = field(default_factory=time.monotonic)
    pause: float = 0.0
    """The most seconds in which no call returned."""
    faults: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    """Results that are not the call's."""
    left: list[str] = field(default_factory=list)
    """Sandboxes that were there after the session had closed."""

    @property
    def failed(self) -> bool:
        return bool(self.untyped or self.wrong or self.late or self.left)


@contextmanager
def calling(
    session: Session,
    make: Callable[[Session], Operation[Sandbox]],
    tally: Tally,
    more: Callable[[], bool],
    *,
    seed: int,
    workers: int = 8,
) -> Iterator[None]:
    """Make calls on sandboxes from `make` in threads beside the block, one after the other while there are
    `more`, and wait for the last ones at its end."""
    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(workers) as threads:
        running = []
        for n in range(workers):
            chance, own = random.Random(f"{seed}:{n}"), Path(folder, str(n))
            caller = _Caller(session, make, tally, chance, own)
            running.append(threads.submit(caller.run, more))
        yield
        for each in running:
            each.result()


@dataclass
class _Caller:
    """One thread's calls, on one sandbox after the other."""

    session: Session
    make: Callable[[Session], Operation[Sandbox]]
    tally: Tally
    chance: random.Random
    folder: Path
    box: Sandbox | None = None

    def run(self, more: Callable[[], bool]) -> None:
        fill(self.folder)
        while more():
            box = self.box
            if box is None:
                self.box = self._call("create", lambda: self.make(self.session))
                continue
            calls = menu(self.session, box, self.chance, self.folder)
            ((_, name, timeout, call),) = self.chance.choices(calls, [each[0] for each in calls])
            result = self._call(name, call, timeout)
            shown = result if name == "exec" else None
            if shown is not None and shown.stdout + shown.stderr != "out\nerr\n":
                self.tally.wrong.append(f"{name}: {result!r:.200}")
            if name == "delete":
                self.box = None

    # Any: results of every type.
    def _call(self, name: str, call: Callable[[], Operation[Any]], timeout: float = 0) -> Any:
        allowed = timeout + SECONDS + _GRACE + _BUSY
        started, operation = time.monotonic(), call()
        outcome, result, text = "ok", None, ""
        try:
            # Longer than is allowed, to see whether it ends at all; that it was late is seen below.
            result = operation.result(allowed + _HANG)
        except SandboxError as error:
            outcome = type(error).__name__
            if isinstance(error, SandboxNotFoundError | SandboxTerminatedError):
                self.box = None
        except Exception as error:  # noqa: BLE001 - it is what this looks for
            outcome = type(error).__name__ if operation.done() else "hang"
            text = "".join(traceback.format_exception(error))
            operation.cancel()
        took = time.monotonic() - started
        with _TALLYING:
            tally, now = self.tally, time.monotonic()
            tally.pause, tally.last = max(tally.pause, now - tally.last), now
            tally.calls[name] += 1
            tally.outcomes[outcome] += 1
            tally.longest = max(tally.longest, took - timeout)
            if text and outcome != "hang":
                tally.untyped.append(f"{name}: {text}")
            if took > allowed:
                tally.late.append(f"{name}: {outcome} after {took:.0f} s, {allowed:g} s allowed")
        return result

"""What a busy client does: everything that a session can, at random, from one seed."""

import concurrent.futures
import os
import random
import time
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from sandboxkit import Operation, Process, Sandbox, SandboxError, Session, wait
from tests.chaos._census import waiting

__all__ = ["FORK_NAME", "HEALED", "PATIENCE", "Work"]

FORK_NAME = "chaos-fork"
"""What a forked child calls itself, so that it is not taken for something left behind."""
HEALED = "healed"
"""The file in a round's folder that says that nothing is broken any more."""
PATIENCE = 30.0
"""Seconds in which every operation has to end; one that does not is a hang."""
_LIVE = 4
_PENDING = 24
_FORK_SECONDS = 20.0


class Work:
    """Random calls on one session; `outcomes` counts how they ended, `wrong` how they must not."""

    # Any: operations of every result type.
    def __init__(self, session: Session, seed: int, mark: str, folder: Path) -> None:
        self._session, self._mark, self._folder = session, mark, folder
        self._random = random.Random(seed)
        self._sandboxes: list[Sandbox] = []
        self._pending: list[Operation[Any]] = []
        self._children: list[int] = []
        self._names: WeakKeyDictionary[Operation[Any], str] = WeakKeyDictionary()
        self.outcomes: Counter[str] = Counter()
        self.wrong: list[str] = []
        self._upload = folder / "upload"
        self._upload.mkdir(exist_ok=True)
        (self._upload / "data").write_bytes(os.urandom(200_000))

    def run(self, seconds: float) -> None:
        """Work so long, then wait for what is under way or cancel it."""
        actions: list[tuple[Callable[[], None], int]] = [
            (self._start, 4),
            (self._exec, 6),
            (self._stdin, 3),
            (self._live, 2),
            (self._terminal, 2),
            (self._files, 4),
            (self._transfer, 3),
            (self._burst, 2),
            (self._cancel, 5),
            (self._stop, 1),
            (self._fork, 1),
        ]
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            (action,) = self._random.choices([a for a, _ in actions], [w for _, w in actions])
            if len(self._pending) < _PENDING:
                action()
            self._reap()
            time.sleep(self._random.uniform(0, 0.05))
        self.finish()

    def finish(self) -> None:
        """Cancel some of what is under way, and see that all of it ends."""
        for operation in self._pending:
            if self._random.random() < 0.5:
                operation.cancel()
        if self._pending:
            wait(self._pending, num_returns=len(self._pending), timeout=PATIENCE)
        self._reap()
        for operation in self._pending:
            shown = getattr(operation, "argv", self._names.get(operation, "?"))
            self.wrong.append(f"hang: {shown} has not ended after {PATIENCE:g} s")
        if self._pending:
            self.wrong += waiting()

    def end_children(self) -> None:
        """End the forked children."""
        for child in self._children:
            os.kill(child, 9)
            os.waitpid(child, 0)
        self._children.clear()

    def _box(self) -> Sandbox:
        if not self._sandboxes:
            self._start()
        return self._random.choice(self._sandboxes)

    # Any: as for _pending.
    def _add(self, what: str, *operations: Operation[Any]) -> None:
        self._pending += operations
        for operation in operations:
            self._names[operation] = what

    def _reap(self) -> None:
        left: list[Operation[Any]] = []
        for operation in self._pending:
            if operation.done():
                self._note(operation)
            else:
                left.append(operation)
        self._pending = left

    def _note(self, operation: Operation[Any]) -> None:
        try:
            operation.result()
            self.outcomes["ok"] += 1
        except SandboxError as error:
            self.outcomes[type(error).__name__] += 1
        except concurrent.futures.CancelledError:
            self.outcomes["cancelled"] += 1
        except BrokenPipeError:
            self.outcomes["BrokenPipeError"] += 1  # what a write to an ended command's input says
        except Exception as error:  # noqa: BLE001 - it is what this looks for
            self.outcomes[type(error).__name__] += 1
            self.wrong.append("".join(traceback.format_exception(error)))

    def _start(self) -> None:
        if len(self._sandboxes) < _LIVE:
            sandbox = self._session.sandbox()
            self._sandboxes.append(sandbox)
            self._add("start", sandbox.start())

    def _stop(self) -> None:
        if len(self._sandboxes) > 1:
            sandbox = self._sandboxes.pop(self._random.randrange(len(self._sandboxes)))
            self._add("stop", sandbox.stop())

    def _script(self) -> list[str]:
        seconds = self._random.choice([0.0, 0.0, 0.05, 0.3, 100.0])
        detour = self._random.choice(["", "setsid ", "exec "])
        return ["sh", "-c", f"echo {self._mark}; {detour}sleep {seconds}"]

    def _exec(self) -> None:
        limit = self._random.choice([0.01, 0.2, 1.0])
        process = self._box().exec(self._script(), timeout=limit)
        self._add("exec", process)
        if self._random.random() < 0.2:
            process.kill()

    def _stdin(self) -> None:
        data = bytes(self._random.choice([0, 10, 300_000]))
        self._add("exec with stdin", self._box().exec(["cat"], stdin=data, timeout=5))

    def _live(self) -> None:
        process = self._box().exec(["head", "-c", "10"], stdin=True, timeout=2)
        self._add("exec with live stdin", process)
        self._add("write to stdin", process.stdin.write(b"0123456789"))

    def _terminal(self) -> None:
        self._add(
            "exec on a terminal",
            self._box().exec(["sh", "-c", "tty; sleep 0.1"], pty=True, timeout=2),
        )

    def _files(self) -> None:
        box, path = self._box(), f"/workspace/{self._random.randrange(5)}"
        self._add("write", box.write_file(path, bytes(self._random.choice([0, 100, 400_000]))))
        self._add("read", box.read_file(path))
        self._add("list or stat", box.list_dir("/workspace"), box.stat("/workspace"))

    def _transfer(self) -> None:
        box = self._box()
        self._add("upload", box.upload(self._upload, "/workspace/up"))
        target = self._folder / f"down-{self._random.randrange(10**9)}"
        self._add("download", box.download("/workspace", target))

    def _burst(self) -> None:
        for _ in range(self._random.randint(1, 3)):
            self._add("run", self._session.run(self._script(), timeout=0.2))

    def _cancel(self) -> None:
        if self._pending:
            operation = self._random.choice(self._pending)
            if isinstance(operation, Process) and self._random.random() < 0.3:
                operation.kill()
            else:
                operation.cancel()

    def _fork(self) -> None:
        if len(self._children) >= 2:
            return
        child = os.fork()
        if child:
            self._children.append(child)
            return
        try:
            Path("/proc/self/comm").write_text(FORK_NAME)
            time.sleep(_FORK_SECONDS)
        finally:
            os._exit(0)

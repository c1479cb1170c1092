"""The program that each round starts, and that something happens to.

    python -m tests.chaos.client PROVIDER TAG SEED SECONDS FOLDER [detach] [distant] [leaky]

It prints "ready" when it begins to work, and at an orderly end what it saw, as JSON. It ends with
status 3 where a call ended with what is no SandboxError, or did not end, or left something open, or where
the session was not as fast as before once FOLDER had the file that says that everything is whole again.
"""

import concurrent.futures
import faulthandler
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections import Counter
from pathlib import Path
from typing import Any
from unittest import mock

from sandboxkit import Operation, Process, Sandbox, SandboxError, Session, wait
from sandboxkit.providers.docker import _direct
from tests.chaos import _census
from tests.chaos._census import Pace, census, growth
from tests.chaos.calls import fill, menu
from tests.chaos.distant import no_way

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

    def __init__(self, session: Session, seed: int, mark: str, folder: Path) -> None:
        self._session, self._mark, self._folder = session, mark, folder
        self._random = random.Random(seed)
        self._sandboxes: list[Sandbox] = []
        # Any: operations of every result type.
        self._pending: dict[Operation[Any], str] = {}
        self._children: list[int] = []
        self.outcomes: Counter[str] = Counter()
        self.wrong: list[str] = []
        fill(folder)

    def run(self, seconds: float) -> None:
        """Work so long, then cancel some of what is under way, and see that all of it ends."""
        actions = [self._start, self._call, self._script, self._live, self._cancel, self._stop]
        actions, weights = [*actions, self._fork], [4, 18, 8, 2, 5, 1, 1]
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            (action,) = self._random.choices(actions, weights)
            if len(self._pending) < _PENDING:
                action()
            self._reap()
            time.sleep(self._random.uniform(0, 0.05))
        for operation in self._pending:
            if self._random.random() < 0.5:
                operation.cancel()
        if self._pending:
            wait(list(self._pending), num_returns=len(self._pending), timeout=PATIENCE)
        self._reap()
        for operation, name in self._pending.items():
            shown = getattr(operation, "argv", name)
            self.wrong.append(f"hang: {shown} has not ended after {PATIENCE:g} s")

    def end_children(self) -> None:
        for child in self._children:
            os.kill(child, 9)
            os.waitpid(child, 0)
        self._children.clear()

    def _box(self) -> Sandbox:
        if not self._sandboxes:
            self._start()
        return self._random.choice(self._sandboxes)

    def _reap(self) -> None:
        for operation in [each for each in self._pending if each.done()]:
            del self._pending[operation]
            try:
                operation.result()
                outcome = "ok"
            except concurrent.futures.CancelledError:
                outcome = "cancelled"
            except Exception as error:  # noqa: BLE001 - it is what this looks for
                outcome = type(error).__name__
                # A write to an ended command's input says that it is broken.
                if not isinstance(error, SandboxError | BrokenPipeError):
                    self.wrong.append("".join(traceback.format_exception(error)))
            self.outcomes[outcome] += 1

    def _start(self) -> None:
        if len(self._sandboxes) < _LIVE:
            sandbox = self._session.sandbox()
            self._sandboxes.append(sandbox)
            self._pending[sandbox.start()] = "start"

    def _stop(self) -> None:
        if len(self._sandboxes) > 1:
            sandbox = self._sandboxes.pop(self._random.randrange(len(self._sandboxes)))
            self._pending[sandbox.stop()] = "stop"

    def _call(self) -> None:
        calls = menu(self._session, self._box(), self._random, self._folder)
        calls = [each for each in calls if each[1] not in ("wait", "delete")]
        ((_, name, _, call),) = self._random.choices(calls, [each[0] for each in calls])
        self._pending[call()] = name

    def _script(self) -> None:
        """A program that may be left by its shell, in a sandbox of ours or in several of its own."""
        seconds = self._random.choice([0.0, 0.0, 0.05, 0.3, 100.0])
        detour = self._random.choice(["", "setsid ", "exec "])
        argv = ["sh", "-c", f"echo {self._mark}; {detour}sleep {seconds}"]
        if self._random.random() < 0.25:
            for _ in range(self._random.randint(1, 3)):
                self._pending[self._session.run(argv, timeout=0.2)] = "run"
            return
        process = self._box().exec(argv, timeout=self._random.choice([0.01, 0.2, 1.0]))
        self._pending[process] = "exec"
        if self._random.random() < 0.2:
            process.kill()

    def _live(self) -> None:
        process = self._box().exec(["head", "-c", "10"], stdin=True, timeout=2)
        self._pending[process] = "exec with live stdin"
        self._pending[process.stdin.write(b"0123456789")] = "write to stdin"

    def _cancel(self) -> None:
        if self._pending:
            operation = self._random.choice(list(self._pending))
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


def work(provider: str, tag: str, seed: int, seconds: float, folder: Path, *options: str) -> int:
    with Session(provider, tags=f"chaos:{tag}") as session:
        session.run(["true"]).result()
    before = census()
    session = Session(provider, tags=f"chaos:{tag}", lifetime=120, pool=seed % 2 or None)
    pace = Pace(session)
    busy = Work(session, seed, f"chaos-{tag}", folder / "work")
    wrong: list[str] = []
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    if "leaky" in options:
        forget()
    try:
        with session:
            if "detach" in options:
                session.sandbox(detach=True, lifetime=120).start()
            busy.run(seconds)
            end = time.monotonic() + PATIENCE
            while not (healed := (folder / HEALED).exists()) and time.monotonic() < end:
                time.sleep(0.05)
            wrong += filter(None, [pace.back()[1] if healed else ""])
    except* SandboxError as group:
        # Close says so where its connection was broken under it.
        busy.outcomes["close: " + type(group.exceptions[0]).__name__] += 1
    except* Exception as group:  # noqa: BLE001 - it is what this looks for
        wrong += traceback.format_exception(group)
    busy.end_children()
    wrong += busy.wrong
    wrong += [f"left open: {what} ({n} more)" for what, n in growth(before).items()]
    json.dump({"outcomes": busy.outcomes, "wrong": wrong}, sys.stdout)
    sys.stdout.write("\n")
    return 3 if wrong else 0


def forget() -> None:
    """What a round has to find: a descriptor, a process and a thread."""
    os.open("/dev/null", os.O_RDONLY)
    subprocess.Popen(["sleep", "1000"], start_new_session=True)
    threading.Thread(target=threading.Event().wait, name="forgotten", daemon=True).start()
    _census._SECONDS = 5.0  # what it forgot stays


def main() -> int:
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    provider, tag, seed, seconds, folder, *options = sys.argv[1:]
    connect = no_way if "distant" in options else _direct.connect
    with mock.patch.object(_direct, "connect", connect):
        return work(provider, tag, int(seed), float(seconds), Path(folder), *options)


if __name__ == "__main__":
    sys.exit(main())

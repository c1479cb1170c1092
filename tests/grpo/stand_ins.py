"""Processes forked from one that has imported torch for all of them, which takes seconds of a processor.

They are ranks of train_worker.py, and servers of stand_in.py. Needs no torch here.
"""

import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
import traceback
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass
class Nursery:
    """The process from which others are forked; it ends when its input does, or is killed."""

    process: "subprocess.Popen[str]"

    def fork(self, kind: str, *each: list[str]) -> list[int]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps([kind, each]) + "\n")
        self.process.stdin.flush()
        pids: list[int] = json.loads(self.process.stdout.readline())
        return pids

    def train(self, *arguments: str, ranks: int, kill_after: int | None = None) -> list[str]:
        """Train with these arguments of train_worker.py and return the reports, a line of JSON each.

        After `kill_after` reports every rank is killed. Raises AssertionError where a rank fails.
        """
        assert self.process.stdout is not None
        place = [str(ranks), str(free_port())]
        pids = self.fork("train", *([str(rank), *place, *arguments] for rank in range(ranks)))
        reports = list[str]()
        for line in self.process.stdout:
            if line.startswith("["):
                wanted = 0 if kill_after is None else -signal.SIGKILL
                assert json.loads(line) == [wanted] * ranks
                return reports
            if line.startswith("{") and (kill_after is None or len(reports) < kill_after):
                reports.append(line)
                if len(reports) == kill_after:
                    for pid in pids:
                        os.kill(pid, signal.SIGKILL)
        raise AssertionError("the nursery has ended")


@contextlib.contextmanager
def nursery() -> Iterator[Nursery]:
    pipe = subprocess.PIPE
    command = [sys.executable, "-m", __name__]
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
        try:
            yield Nursery(process)
        finally:
            process.kill()


@dataclass
class Served:
    """A server on this machine, in a process of its own, of which each start has the same url."""

    nursery: Nursery
    port: int
    arguments: list[str]
    pid: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self, *, wait: bool = True) -> None:
        (self.pid,) = self.nursery.fork("serve", [str(self.port), *self.arguments])
        deadline = time.monotonic() + 120
        while wait:
            with contextlib.suppress(urllib.error.URLError, OSError):
                urllib.request.urlopen(f"{self.url}/v1/models", timeout=5).close()
                return
            assert time.monotonic() < deadline
            time.sleep(0.05)

    def signal(self, number: int) -> None:
        os.kill(self.pid, number)

    def kill(self) -> None:
        deadline = time.monotonic() + 30
        with contextlib.suppress(ProcessLookupError):
            while self.pid and time.monotonic() < deadline:
                os.kill(self.pid, signal.SIGKILL)
                time.sleep(0.01)
        self.pid = 0


@contextlib.contextmanager
def serving(count: int, folder: Path, stop: int) -> Iterator[list[Served]]:
    with nursery() as process:
        made = [Served(process, free_port(), [str(folder), str(stop)]) for _ in range(count)]
        try:
            for each in made:
                each.start()
            yield made
        finally:
            for each in made:
                each.kill()


def free_port() -> int:
    """A port on which nobody listens, below those that the kernel gives to whoever asks for any."""
    lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    while True:
        port = random.randrange(lowest // 2, lowest)
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port


def _main() -> None:
    from tests.grpo import stand_in, train_worker

    jobs: dict[str, Callable[..., None]] = {"train": train_worker.run, "serve": stand_in.serve}
    for line in sys.stdin:
        kind, each = json.loads(line)
        ready, go = os.pipe()  # the process ids are written before anything that they write
        pids = []
        # Nobody waits for a server.
        signal.signal(signal.SIGCHLD, signal.SIG_IGN if kind == "serve" else signal.SIG_DFL)
        for arguments in each:
            pid = os.fork()
            if pid == 0:
                os.close(go)
                os.read(ready, 1)
                try:
                    jobs[kind](*arguments)
                finally:
                    traceback.print_exc()
                    os._exit(1)
            pids.append(pid)
        sys.stdout.write(f"{json.dumps(pids)}\n")
        sys.stdout.flush()
        os.close(ready)
        os.close(go)
        if kind == "train":
            ends = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
            sys.stdout.write(f"{json.dumps(ends)}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    _main()

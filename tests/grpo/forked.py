"""Ranks of train_worker.py that are forked from one process, which has imported torch for all of them.

The import takes seconds of processor time, and torchrun would pay it for itself and for each rank.
tests/grpo/test_program.py starts ranks by torchrun.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tests.grpo import train_worker
from tests.grpo.stand_ins import free_port


@dataclass
class Nursery:
    """The process from which ranks are forked."""

    process: "subprocess.Popen[str]"

    def train(self, *arguments: str, ranks: int, kill_after: int | None = None) -> list[str]:
        """Train with these arguments of train_worker.py and return the reports, a line of JSON each.

        After `kill_after` reports every rank is killed. Raises AssertionError where a rank fails.
        """
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps([ranks, free_port(), arguments]) + "\n")
        self.process.stdin.flush()
        pids: list[int] = json.loads(self.process.stdout.readline())
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
    """Start the process, and end it afterwards."""
    pipe = subprocess.PIPE
    with subprocess.Popen(
        [sys.executable, "-m", "tests.grpo.forked"], stdin=pipe, stdout=pipe, text=True
    ) as process:
        try:
            yield Nursery(process)
        finally:
            process.kill()


def _rank(number: int, ranks: int, port: int, arguments: Sequence[str]) -> None:
    variables = {"RANK": number, "LOCAL_RANK": number, "WORLD_SIZE": ranks, "MASTER_PORT": port}
    os.environ.update({name: str(value) for name, value in variables.items()})
    os.environ["MASTER_ADDR"] = "127.0.0.1"
    train_worker.run(arguments)


def _main() -> None:
    for line in sys.stdin:
        ranks, port, arguments = json.loads(line)
        ready, go = os.pipe()  # the process ids are written before any report
        pids = []
        for number in range(ranks):
            pid = os.fork()
            if pid == 0:
                os.close(go)
                os.read(ready, 1)
                try:
                    _rank(number, ranks, port, arguments)
                finally:
                    traceback.print_exc()
                    os._exit(1)
            pids.append(pid)
        sys.stdout.write(f"{json.dumps(pids)}\n")
        sys.stdout.flush()
        os.close(ready)
        os.close(go)
        ends = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
        sys.stdout.write(f"{json.dumps(ends)}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    _main()

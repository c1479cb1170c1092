"""Others' processor time is seen, and ours and the daemon's is not taken for it."""

import dataclasses
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.report.machine import MARKER, Process, Snapshot, busy, snapshot

SPIN = """
import sys, time
while time.process_time() < 0.3: pass
print("spun", flush=True)
sys.stdin.read()
"""
MINE = "of the test"


@contextmanager
def spinner(marker: str | None) -> Iterator[subprocess.Popen[bytes]]:
    """A process that reads once it has used 0.3 s of a processor; its parent is not ours."""
    environment = {name: value for name, value in os.environ.items() if name != MARKER}
    if marker is not None:
        environment[MARKER] = marker
    with subprocess.Popen(
        [sys.executable, "-c", SPIN],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment,
    ) as process:
        yield process
        process.communicate()


def test_what_others_use_is_seen_and_what_bears_the_mark_is_not() -> None:
    before = snapshot(MINE)
    with spinner(MINE) as ours, spinner(None) as other:
        for process in (ours, other):
            assert process.stdout is not None
            assert process.stdout.readline() == b"spun\n"
        after = snapshot(MINE)
    assert other.pid in after.others
    assert ours.pid not in after.others
    assert after.others[other.pid].seconds >= 0.25
    # Other processes end meanwhile, perhaps between the looks at their parents and at them.
    before, after = (
        dataclasses.replace(each, others={k: v for k, v in each.others.items() if k == other.pid})
        for each in (before, after)
    )
    assert busy(before, after, processors=1) * (after.at - before.at) >= 0.25


def seconds(*processes: tuple[int, int, float], at: float, stolen: float = 0.0) -> Snapshot:
    table = {
        pid: Process(started=pid, parent=parent, name="other", seconds=used)
        for pid, parent, used in processes
    }
    return Snapshot(at, table, stolen)


def test_shares_of_the_machine() -> None:
    start = seconds((10, 1, 5.0), at=0.0)
    assert busy(start, seconds((10, 1, 5.0), at=2.0), processors=2) == 0.0
    assert busy(start, seconds((10, 1, 6.0), at=2.0), processors=2) == 0.25
    new = seconds((10, 1, 5.0), (11, 10, 1.0), at=2.0)
    assert busy(start, new, processors=2) == 0.25
    assert busy(start, seconds((10, 1, 5.0), at=2.0, stolen=1.0), processors=2) == 0.25


def test_a_process_that_ended_is_counted_once_by_its_parent() -> None:
    before = seconds((10, 1, 5.0), (11, 10, 3.0), at=0.0)
    after = seconds((10, 1, 8.5), at=1.0)
    assert busy(before, after, processors=1) == 0.5


def test_cpu_time_counts_the_daemon_and_its_containers(tmp_path: Path) -> None:
    def process(pid: int, parent: int, name: str, environment: bytes = b"") -> None:
        folder = tmp_path / str(pid)
        folder.mkdir()
        fields = ["S", str(parent), *["0"] * 9, "10", "20", "30", "40", *["0"] * 4, "7"]
        (folder / "stat").write_text(f"{pid} ({name}) {' '.join(fields)}")
        (folder / "environ").write_bytes(environment)

    (tmp_path / "stat").write_text("cpu  1 2 3 4 5 6 7 250 0 0\n")
    process(1, 0, "init")
    process(2, 0, "kthreadd")
    process(20, 2, "kworker")
    process(30, 1, "dockerd")
    process(40, 1, "containerd-shim")
    process(41, 40, "python3")
    process(50, 1, "a (b) c", f"A=1\0{MARKER}=run\0".encode())
    process(51, 50, "child")
    process(70, 60, "this one")
    process(71, 70, "its child")
    process(60, 1, "stranger", f"{MARKER}=other".encode())
    found = snapshot("run", 70, tmp_path)
    assert sorted(found.others) == [1, 60]
    assert found.others[60].seconds == 100 / os.sysconf("SC_CLK_TCK")
    assert found.stolen == 250 / os.sysconf("SC_CLK_TCK")

"""Others' processor time is seen, and ours and the daemon's is not taken for it."""

import os
import tomllib
from pathlib import Path
from typing import Any

import pytest

from benchmarks.report.machine import MARKER, Process, Snapshot, busy, snapshot

SHARES = tomllib.loads((Path(__file__).parent / "machine.toml").read_text())


@pytest.mark.parametrize("case", SHARES["after"], ids=str)
def test_shares_of_the_machine(case: dict[str, Any]) -> None:
    def seconds(processes: list[Any], at: float, stolen: float) -> Snapshot:
        table = {pid: Process(pid, parent, "other", used) for pid, parent, used in processes}
        return Snapshot(at, table, stolen)

    after = seconds(case["processes"], case.get("at", 2.0), case.get("stolen", 0.0))
    assert busy(seconds(SHARES["before"], 0.0, 0.0), after, processors=2) == case["share"]


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

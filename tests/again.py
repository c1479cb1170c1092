"""Which tests may run again after a failure, by themselves, and how often: no others ever do."""

import os
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

import pytest

LIST = Path(__file__).with_name("again.txt")
NEVER = ("tests/core/", "tests/agent/", "tests/crash/", "tests/pool/")
"""A failure here is a race of ours: what load shows is what these tests are for."""
LEFT = "the tests left behind:\n"
STATUS_LEFT, STATUS_AGAIN = 6, 7
"""pytest's exit status where nothing failed but that something was left, which running the last test
again does not excuse; and where only tests failed that may run again."""


@dataclass(frozen=True)
class Excused:
    """Tests that may fail for a reason that is not what they are about."""

    prefix: str
    """With which their ids begin: a file, or one of its tests."""
    times: int
    why: str


def excused(text: str) -> list[Excused]:
    """Read a list: each line has a prefix of test ids, how many times, and why."""
    lines = [line.split(maxsplit=2) for line in text.splitlines()]
    return [
        Excused(line[0], int(line[1]), line[2]) for line in lines if line[:1] not in ([], ["#"])
    ]


def may_run_again(failed: Collection[str], runs: int, listed: Collection[Excused]) -> bool:
    """Whether each of these may have one more run after so many."""
    return bool(failed) and all(
        not test.startswith(NEVER)
        and any(runs <= each.times and _covers(each.prefix, test) for each in listed)
        for test in failed
    )


def _covers(prefix: str, test: str) -> bool:
    return test == prefix or test.startswith((f"{prefix}::", f"{prefix}["))


_failed: dict[str, bool] = {}
"""The ids of tests that failed, and whether it is only that something was left."""


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    if report.failed:
        left = LEFT in report.longreprtext
        _failed[report.nodeid] = left and _failed.get(report.nodeid, True)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Tell `make` by the exit status what the failures allow."""
    if session.exitstatus != pytest.ExitCode.TESTS_FAILED or not _failed:
        return
    if all(_failed.values()):
        session.exitstatus = STATUS_LEFT
    elif not any(_failed.values()):
        runs = int(os.environ.get("SANDBOXKIT_TEST_TURN", "1"))
        if may_run_again(_failed, runs, excused(LIST.read_text())):
            session.exitstatus = STATUS_AGAIN

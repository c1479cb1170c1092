"""The table at the end of a run: how many tests were skipped for want of what, and how to get it.

Each process of a run adds a line to one file for each such test. `SANDBOXKIT_SKIPS=FILE` names it where the run
is one of several, and `python -m tests.skips FILE` then prints the table of all.
"""

import contextlib
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.components import parsed

_VARIABLE = "SANDBOXKIT_SKIPS"


def pytest_configure(config: pytest.Config) -> None:
    """Make the file of a run that is by itself; xdist's processes inherit its name."""
    if _VARIABLE not in os.environ:
        descriptor, os.environ[_VARIABLE] = tempfile.mkstemp(prefix="skips-")
        os.close(descriptor)
        config.add_cleanup(lambda: Path(os.environ.pop(_VARIABLE)).unlink())
        config.pluginmanager.register(_Table())


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    _note(report)


def pytest_collectreport(report: pytest.CollectReport) -> None:
    _note(report)


def _note(report: pytest.TestReport | pytest.CollectReport) -> None:
    skip = report.longrepr[2] if report.skipped and isinstance(report.longrepr, tuple) else ""
    if found := parsed(skip):
        with open(os.environ[_VARIABLE], "a") as file:
            print(report.nodeid, *found, sep="\t", file=file)


class _Table:
    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if lines := list(table(Path(os.environ[_VARIABLE]))):
            terminalreporter.section("skipped for want of a component")
            for line in lines:
                terminalreporter.line(line)


def table(file: Path) -> Iterator[str]:
    """Yield the table's lines, the largest number first; none if nothing was skipped for such a reason."""
    tests = {tuple(line.split("\t")) for line in file.read_text().splitlines()}
    counts = Counter((component, remedy) for _, component, remedy in tests)
    if counts:
        found = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
        rows = [("tests", "without", "how to get it")]
        rows += [(str(n), component, remedy) for (component, remedy), n in found]
        width = max(len(row[1]) for row in rows)
        for number, component, remedy in rows:
            yield f"{number:>6}  {component:{width}}  {remedy}"


if __name__ == "__main__":
    with contextlib.suppress(FileNotFoundError):
        sys.stdout.writelines(f"{line}\n" for line in table(Path(sys.argv[1])))

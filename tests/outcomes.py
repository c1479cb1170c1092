"""What each test came to, for the run of several groups (tests/run.py), and the table of what was skipped.

`SANDBOXKIT_OUTCOMES=FILE` gets a line of JSON for each test; without it, a run ends with its own table of skips.
"""

import dataclasses
import json
import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.components import parsed

VARIABLE = "SANDBOXKIT_OUTCOMES"


@dataclass(frozen=True)
class Outcome:
    """A test, or a file that was skipped whole."""

    test: str
    """pytest's id."""
    result: str
    """`passed`, `failed` or `skipped`."""
    text: str = ""
    """The traceback of a failure, the reason of a skip."""
    seconds: float = 0.0


def read(lines: Iterable[str]) -> dict[str, Outcome]:
    """Return the outcome of each test: failed if any phase failed, skipped if none failed and one was skipped."""
    found: dict[str, Outcome] = {}
    for line in lines:
        new = Outcome(**json.loads(line))
        old = found.get(new.test, new)
        worse = min(old, new, key=lambda each: ("failed", "skipped", "passed").index(each.result))
        seconds = new.seconds if old is new else old.seconds + new.seconds
        found[new.test] = dataclasses.replace(worse, seconds=seconds)
    return found


def skip_table(outcomes: Iterable[Outcome]) -> Iterator[str]:
    """Yield how many tests lack which component and how to get it, the largest number first; nothing for none."""
    counts = Counter(
        found for each in outcomes if each.result == "skipped" and (found := parsed(each.text))
    )
    if counts:
        rows = [("tests", "without", "how to get it")]
        rows += [
            (str(number), component, remedy)
            for (component, remedy), number in sorted(
                counts.items(), key=lambda item: (-item[1], item[0])
            )
        ]
        width = max(len(component) for _, component, _ in rows)
        for number, component, remedy in rows:
            yield f"{number:>6}  {component:{width}}  {remedy}"


def pytest_configure(config: pytest.Config) -> None:
    """Write the outcomes where the run of several groups wants them, or print the table here."""
    file = os.environ.get(VARIABLE)
    # xdist's processes send their reports to the first one, but for skipped files with equal reasons.
    if hasattr(config, "workerinput"):
        if file:
            config.pluginmanager.register(_SkippedFiles(file))
    elif file:
        config.pluginmanager.register(_Written(file))
        config.pluginmanager.register(_Progress(config))
    else:
        config.pluginmanager.register(_Table())


def _of(report: pytest.TestReport | pytest.CollectReport) -> Outcome:
    text = report.longreprtext if report.failed else ""
    if report.skipped and isinstance(report.longrepr, tuple):
        text = report.longrepr[2]
    seconds = report.duration if isinstance(report, pytest.TestReport) else 0.0
    return Outcome(report.nodeid, report.outcome, text, seconds)


class _SkippedFiles:
    def __init__(self, file: str) -> None:
        self._file = file

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.skipped:
            self._write(_of(report))

    def _write(self, outcome: Outcome) -> None:
        with open(self._file, "a") as file:
            print(json.dumps(dataclasses.asdict(outcome)), file=file)


class _Written(_SkippedFiles):
    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._write(_of(report))


class _Table:
    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        skipped = {each.nodeid: _of(each) for each in terminalreporter.stats.get("skipped", ())}
        if lines := list(skip_table(skipped.values())):
            terminalreporter.section("skipped for want of a component")
            for line in lines:
                terminalreporter.line(line)


class _Progress:
    """Prints a line for each folder when its last test has ended, in the place of a letter for each test."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._left: Counter[str] = Counter()
        self._results: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self._seconds: defaultdict[str, float] = defaultdict(float)
        self._all = 0

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self._expect(item.nodeid for item in session.items)

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, ids: list[str]) -> None:
        if not self._all:
            self._expect(ids)

    def _expect(self, tests: Iterable[str]) -> None:
        self._left.update(map(folder, tests))
        self._all = self._left.total()

    def pytest_report_teststatus(self, report: pytest.TestReport) -> tuple[str, str, str]:
        if report.when == "call" or not report.passed:
            error = report.failed and report.when != "call"
            return ("error" if error else report.outcome), "", ""
        return "", "", ""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        place = folder(report.nodeid)
        self._seconds[place] += report.duration
        if report.when == "call" or not report.passed:
            self._results[place][report.outcome] += 1
        if report.failed:
            self._print(f"FAILED {report.nodeid} ({report.when})")
        if report.when == "teardown":
            self._left[place] -= 1
            if not self._left[place]:
                counts = ", ".join(f"{n} {name}" for name, n in self._results[place].items())
                done = 100 * (self._all - self._left.total()) // (self._all or 1)
                self._print(f"[{done:3}%] {place}: {counts} ({self._seconds[place]:.0f} s)")

    def _print(self, line: str) -> None:
        reporter = self._config.pluginmanager.get_plugin("terminalreporter")
        if isinstance(reporter, pytest.TerminalReporter):
            reporter.write_line(line)


def folder(test: str) -> str:
    """Return the folder of a test's id, such as `tests/core`."""
    return str(Path(*Path(test.partition("::")[0]).parts[:-1][:2]))

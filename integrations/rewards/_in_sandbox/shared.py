"""Run tests in forks of the process that loaded the submission, which can cheat them. Runs in a sandbox.

There are three kinds of process. The keeper never runs the submission, and has the token without which a result
does not count. It forks the subject, which loads the submission. For each test the subject forks a process, which
must return the number that the keeper gives it. A test that does not run to its end fails.
"""

from __future__ import annotations

import json
import os
import signal
from typing import Any  # Any: JSON

from sandboxkit.integrations.rewards._in_sandbox.running import (
    define,
    module_of_tests,
    problem,
    run_test,
)
from sandboxkit.integrations.rewards._in_sandbox.submission import (
    LoadedSubmission,
    send,
    take_channel,
)


def subject(orders: Any, reports: int) -> None:
    """Load the submission, then fork a process for each test that the keeper names. Never returns."""
    submission = LoadedSubmission()
    loaded = submission.guarded(submission.load, json.loads(orders.readline()))
    send(reports, ["loaded", *loaded])
    for line in orders:
        child = os.fork()
        if child == 0:
            order = json.loads(line)
            send(reports, [order["number"], *problem(lambda: _run(submission, order))])  # noqa: B023 - at once
            os._exit(0)
        send(reports, ["ended", os.waitpid(child, 0)[1]])
    os._exit(0)


def _run(submission: LoadedSubmission, order: Any) -> None:
    public = {name: each for name, each in submission.names.items() if name[:2] != "__"}
    names = module_of_tests(public)
    define(names, order["sources"])
    for test in order["tests"]:
        run_test(names, test)


def results(subject: int, orders: int, reports: Any, tests: list[Any]) -> list[Any]:
    """Have the tests run, one group after another, and accept only reports with their number.

    Returns [outcome, detail] of each group of tests, up to the first failure.
    """
    kind, *loaded = _report(reports) or ["ended", os.waitpid(subject, 0)[1]]
    if kind != "loaded" or loaded[:1] != ["value"]:
        return [_failure(loaded)]
    found: list[Any] = []
    for group in tests:
        number = os.urandom(16).hex()
        send(orders, {**group, "number": number})
        report = _report(reports)
        if report[:1] != [number]:
            return [*found, _failure(report[1:])]
        found.append(report[1:])
        if report[1:] != ["passed", ""]:
            break
        if _report(reports) != ["ended", 0]:
            found[-1] = ["failed", "the process of the tests did not end by itself"]
            break
    return found


def _failure(report: list[Any]) -> list[str]:
    if report == ["memory"]:
        return ["oom", "MemoryError"]
    if report[:1] == ["raised"] and len(report) == 6:
        return ["failed", f"{report[3]} while {report[1]}: {report[4]}"]
    if report == [signal.SIGXCPU]:
        return ["timeout", "exceeded its CPU time limit"]
    return ["failed", "the process of the tests ended before the test did"]


def _report(reports: Any) -> list[Any]:
    try:
        value = json.loads(reports.readline(1 << 16))
    except (ValueError, RecursionError):
        return []
    return value if isinstance(value, list) else []


def main() -> None:
    """Run the job on stdin and write the token and the results as one line."""
    import ctypes

    ctypes.CDLL(None).prctl(
        4, 0, 0, 0, 0
    )  # PR_SET_DUMPABLE: the submission cannot trace this process
    lines, channel = take_channel()
    (down, orders), (reports, up) = os.pipe(), os.pipe()
    child = os.fork()
    if child == 0:
        for each in (orders, reports, channel, lines.fileno()):
            os.close(each)
        subject(os.fdopen(down, "rb"), up)
    os.close(down)
    os.close(up)
    job = json.loads(lines.readline())  # only now, so that the subject does not have it
    send(orders, job["submission"])
    found = results(child, orders, os.fdopen(reports, "rb"), job["tests"])
    send(channel, {"token": job["token"], "results": found})
    os._exit(0)

"""Grading by tests that share a process with the submission (trust `"shared"`)."""

import dataclasses
import json
import secrets
import sys
from typing import Any

from sandboxkit import Session
from sandboxkit.integrations.rewards import _programs
from sandboxkit.integrations.rewards._limits import Limits
from sandboxkit.integrations.rewards._programs import processor_seconds
from sandboxkit.integrations.rewards._run import ended, run
from sandboxkit.integrations.rewards._same_process_names import names_in_tests
from sandboxkit.integrations.rewards._tests import Tests
from sandboxkit.integrations.rewards._values import shown
from sandboxkit.integrations.rewards._verdict import Outcome, Verdict

_TOKEN_BYTES = 32


async def grade_in_same_process(
    session: Session, submission: str, tests: Tests, limits: Limits
) -> Verdict:
    """Grade a submission by tests that run in forks of the process that loaded it.

    Each test function and check(candidate) gets its own fork, so no test sees the state that
    another test left behind. The lines of `test_list` run in one fork, in order. A submission
    written to attack this way of grading can pass: see `_in_sandbox/same_process.py`. If the
    infrastructure still fails after `limits.retries`, the outcome is INFRA_ERROR. Raises
    ConfigurationError for tests that do not parse.
    """
    token = secrets.token_hex(_TOKEN_BYTES)
    found = names_in_tests(tests)
    calls = tests.calls or ("",)
    job = {
        "code": submission,
        "module": tests.module,
        "imports": found.imports,
        "seconds": processor_seconds(limits),
    }
    test = {
        "sources": [tests.setup, *tests.sources],
        "module": tests.module,
        "names": found.names,
        "modules": [each for each in found.names if each in sys.stdlib_module_names],
        "used": found.used,
        "operators": tests.operators,
    }
    rest = {"token": token, "tests": [{**test, "call": call} for call in calls]}
    program = _programs.same_process(limits.python)
    stdin = _framed(job) + _framed(rest)
    result = await run(session, program, limits, stdin=stdin)
    if not isinstance(result, Verdict):
        verdict = _verdict(result.stdout_bytes, token, len(calls)) or ended(result)
    else:
        verdict = result
    return dataclasses.replace(verdict, trust="shared")


def _framed(value: Any) -> bytes:  # Any: JSON
    data = json.dumps(value).encode()
    return b"%010d" % len(data) + data


def _verdict(answer: bytes, token: str, count: int) -> Verdict | None:
    """Return the verdict for the program's output, or None if the output is empty.

    `count` is the number of tests. An output without the secret `token` counts as forged (TAMPERED),
    except a failure that is reported before the program has read the token.
    """
    if not answer:
        return None
    try:
        reply = json.loads(answer)
    except (ValueError, RecursionError):
        return _forged("the output is not one JSON value")
    match reply:
        case {"token": given, "results": [*results]} if given == token:
            for number, result in enumerate(results, 1):
                match result:
                    case ["passed", ""]:
                        continue
                    case ["failed" | "oom" | "timeout" | "tampered" as outcome, str(detail)]:
                        text = f"test {number}: {shown(detail)}"
                        return Verdict(Outcome(outcome), 0.0, "policy", text)
                    case _:
                        return _forged("a result is of no known kind")
            if len(results) == count:
                return Verdict(Outcome.PASSED, 1.0, "policy", f"{count} tests")
        case {
            "token": "",
            "results": [[("failed" | "oom" | "timeout" | "tampered") as outcome, str(detail)]],
        }:
            return Verdict(Outcome(outcome), 0.0, "policy", shown(detail))
        case _:
            pass
    return _forged("the output was not written by the program that runs the tests")


def _forged(detail: str) -> Verdict:
    return Verdict(Outcome.TAMPERED, 0.0, "policy", detail)

"""Grades by tests in the submission's process: it can fool them, so verdicts have `trust="shared"`."""

import ast
import builtins
import dataclasses
import json
import secrets
import sys
from typing import Any

from sandboxkit import Session
from sandboxkit.integrations.rewards import _programs
from sandboxkit.integrations.rewards._cases import bound_names
from sandboxkit.integrations.rewards._limits import Limits
from sandboxkit.integrations.rewards._programs import processor_seconds
from sandboxkit.integrations.rewards._run import ended, run
from sandboxkit.integrations.rewards._tests import Tests, parsed
from sandboxkit.integrations.rewards._values import shown
from sandboxkit.integrations.rewards._verdict import Outcome, Verdict, failed

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
    names, used, imports = tests.seen or names_in_process(tests)
    calls = tests.calls or ("",)
    job = {
        "code": submission,
        "module": tests.module,
        "imports": imports,
        "seconds": processor_seconds(limits),
    }
    test = {
        "sources": [tests.setup, *tests.sources],
        "module": tests.module,
        "names": sorted(names),
        "modules": sorted(names & sys.stdlib_module_names),
        "used": used,
        "operators": tests.operators,
    }
    rest = {"token": token, "tests": [{**test, "call": call} for call in calls]}
    program = _programs.same_process(limits.python)
    stdin = _framed(job) + _framed(rest)
    result = await run(session, program, limits, stdin=stdin)
    verdict = result
    if not isinstance(verdict, Verdict):
        verdict = _verdict(verdict.stdout_bytes, token, len(calls)) or ended(verdict)
    return dataclasses.replace(verdict, trust="shared")


def names_in_process(tests: Tests) -> tuple[set[str], list[str], list[str]]:
    """Return three kinds of names. Raises ConfigurationError for tests that do not parse.

    They are those that the tests use without defining them, which are the submission's or modules;
    every name, attribute and imported name; and the modules to import before the submission is loaded.
    """
    trees = [parsed(source) for source in (tests.setup, *tests.sources)]
    nodes = [node for tree in trees for node in ast.walk(tree)]
    used = {each.id for each in nodes if isinstance(each, ast.Name)}
    names = (used - set().union(*map(bound_names, trees)) - set(dir(builtins))) | set(tests.names)
    used |= {each.name for each in nodes if isinstance(each, ast.alias)}
    used |= {each.attr for each in nodes if isinstance(each, ast.Attribute)}
    modules = names & sys.stdlib_module_names
    for node in nodes:
        match node:
            case ast.Import(names=aliases):
                modules |= {each.name for each in aliases}
            case ast.ImportFrom(module=str(module), level=0):
                modules.add(module)
            case ast.Call(
                func=ast.Attribute(attr="patch"), args=[ast.Constant(value=str(target)), *_]
            ):
                modules |= {target.partition(".")[0]} & sys.stdlib_module_names
            case _:
                pass
    imports = sorted(each for each in modules if each.partition(".")[0] != tests.module)
    return names, sorted(used), imports


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
                        return failed(f"test {number}: {shown(detail)}", Outcome(outcome))
                    case _:
                        return _forged("a result is of no known kind")
            if len(results) == count:
                return Verdict(Outcome.PASSED, 1.0, "policy", f"{count} tests")
        case {
            "token": "",
            "results": [[("failed" | "oom" | "timeout" | "tampered") as outcome, str(detail)]],
        }:
            return failed(shown(detail), Outcome(outcome))
        case _:
            pass
    return _forged("the output was not written by the program that runs the tests")


def _forged(detail: str) -> Verdict:
    return failed(detail, Outcome.TAMPERED)

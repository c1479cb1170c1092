"""The process that runs trusted tests in a sandbox of their own, and asks for what they call or read."""

import asyncio
import contextlib
import dataclasses
import errno
import json
import math
import secrets
import tempfile
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

from sandboxkit import (
    CommandStartError,
    Operation,
    ProcessResult,
    Sandbox,
    SandboxFileError,
    SandboxFileNotFoundError,
    Session,
)
from sandboxkit.integrations.rewards import _programs
from sandboxkit.integrations.rewards._boundary import shown
from sandboxkit.integrations.rewards._limits import Limits
from sandboxkit.integrations.rewards._run import (
    KILLED,
    OUT_OF_TIME,
    RunMeter,
    abandon,
    begin,
    kill,
    run_options,
    watched,
)
from sandboxkit.integrations.rewards._tests import Tests, load_tests
from sandboxkit.integrations.rewards._verdict import Outcome, Verdict, failed, masked

_SECONDS = 10
"""CPU time of a judge in seconds, on top of the limit of one run."""
_MEMORY = 4 << 30
_LINE = 64 << 20
"""Maximum length of one line from the judge, which contains the arguments of a test's call."""
_OUTCOMES = ("failed", "oom", "timeout", "tampered")
_KEPT = 64 * 1024  # limits only the output that is kept: lines are read while they arrive

_DEADLINE = 600.0
_LIFETIME = 7200.0
_GIT = {
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_CONFIG_COUNT": "1",
    "GIT_CONFIG_KEY_0": "safe.directory",
    "GIT_CONFIG_VALUE_0": "*",
    "GIT_NO_REPLACE_OBJECTS": "1",
    "GIT_OPTIONAL_LOCKS": "0",
}
"""Variables of the programs that a judge runs in the subject."""

# Any: JSON.
Answer = Callable[[str, Any], Awaitable[bytes | Verdict]]
"""Returns the response to a request of the judge, of a kind; a Verdict ends the grading."""


class NotPlainError(Exception):
    """Raised if the tests pass the submission something else than plain data."""


class _Ended(Exception):
    """A process ended before it sent the expected line."""

    def __init__(self, result: ProcessResult) -> None:
        super().__init__(result.returncode)
        self.result = result


def limits_of_judge(limits: Limits) -> Limits:
    """Return the limits of a judge, for a submission with `limits`."""
    return dataclasses.replace(limits, timeout=limits.timeout + _SECONDS, wall=None)


async def judged(sandbox: Sandbox, tests: Tests, limits: Limits, answer: Answer) -> Verdict:
    """Run tests in a started sandbox that no other judge uses, and return their verdict.

    The elapsed time of tests counts from one request to the next, and time in which `answer` works does not count. What the tests do with the answers is the
    submission's doing; tests that end without any are the task's. Infrastructure errors are raised.
    """
    job = {**tests.job(), "seconds": math.ceil(limits.timeout), "memory": _MEMORY}
    process = begin(
        sandbox, _programs.program("judge", limits.python), stdin=True, output_limit=_KEPT
    )
    lines = process.stdout.lines(max_length=_LINE).__aiter__()

    async def exchange(line: bytes) -> str:
        with contextlib.suppress(BrokenPipeError):  # its last output may still say why it ended
            await process.stdin.write(line + b"\n")
        found = await anext(lines, "")
        if not found.endswith("]") and len(found) < _LINE:  # it has ended, perhaps within a line
            raise _Ended(await process)
        return found

    meter, answered = RunMeter(sandbox, limits, None), False
    reply = json.dumps(job).encode()
    try:
        while True:
            asking = asyncio.ensure_future(exchange(reply))
            try:
                line = await meter.within(asking)
            finally:
                abandon(asking)
            if isinstance(line, Verdict):
                return failed(f"the tests: {line.detail}", line.outcome)
            if len(line) >= _LINE:
                return masked("the task is at fault: its tests pass more data than can be sent")
            try:
                kind, content = json.loads(line)
                if kind == "D" and tests.functions and content[-1][0] == "shared":
                    raise NotPlainError(content[-1][1])
                if kind == "D":
                    return verdict_on(content, 1 + len(tests.tests), first=0)
            except (LookupError, TypeError, ValueError, RecursionError):
                # Tests that evaluate a result may be taken over by it.
                return failed("the tests' process sent a line of another kind", Outcome.TAMPERED)
            response = await answer(kind, content)
            if isinstance(response, Verdict):
                return response
            reply, answered = response, True
            meter.restart()
    except _Ended as end:
        if end.result.returncode == OUT_OF_TIME:
            detail = "the tests used up their CPU time on the values that the submission returned"
            return failed(detail, Outcome.TIMEOUT)
        verdict = await meter.judge(end.result, flooded=False)
        if isinstance(verdict, Verdict):
            return verdict
        detail = f"the tests' process ended with status {end.result.returncode}"
        return failed(detail) if answered else masked(f"the task is at fault: {detail}")
    finally:
        await kill(process)


# Any: JSON.
def verdict_on(results: Any, count: int, first: int = 1) -> Verdict:
    """Return the verdict on tests, of which [outcome, detail] are reported, numbered from `first`.

    Raises ValueError and TypeError for what no program of ours reports.
    """
    for number, (outcome, detail) in enumerate(results, first):
        if (outcome, detail) == ("passed", ""):
            continue
        if outcome not in _OUTCOMES:
            raise ValueError(f"no test ends so: {shown(outcome)}")
        where = f"test {number}: " if number else ""
        return failed(where + shown(detail), Outcome(outcome))
    if len(results) != count:
        raise ValueError(f"{len(results)} results instead of {count}")
    return Verdict(Outcome.PASSED, 1.0, "policy", f"{count - 1 + first} tests")


def judge_folder(
    session: Session,
    subject: Sandbox,
    folder: Path,
    limits: Limits | None = None,
    *,
    env: Mapping[str, str] | None = None,
) -> Operation[Verdict]:
    """Grade the contents of the sandbox `subject` with `folder/judge.py`, which runs in another sandbox.

    Every top-level function `test_...()` of judge.py is a check; they run in order until one raises.
    They reach the subject through `import subject`: run(), with the variables `env`, read_file(), read_files(),
    git(), write_file() and remove(). The folder's other files are in the judge's working directory. The judge has
    only Python's standard library. A verdict is "isolated" if judge.py neither runs programs in the subject nor
    evaluates what it reads. `limits` are those of all programs together. Does not stop the subject. Raises
    ConfigurationError for unusable tests. Infrastructure errors are raised and not turned into a verdict.
    """
    # A file that does not exist: `git config --global` of root would replace /dev/null.
    variables = {**_GIT, "GIT_CONFIG_GLOBAL": f"/tmp/{secrets.token_hex(8)}", **(env or {})}
    tests = load_tests(folder)
    return Operation(_graded(session, subject, folder, tests, limits or Limits(), variables))


async def _graded(
    session: Session,
    subject: Sandbox,
    folder: Path,
    tests: Tests,
    limits: Limits,
    variables: Mapping[str, str],
) -> Verdict:
    meter, shared = RunMeter(subject, limits, await subject.usage()), bool(tests.shared)

    # Any: JSON.
    async def answer(_: str, request: Any) -> bytes | Verdict:
        nonlocal shared
        match request:
            case ["run", *_]:
                shared = True
            case ["lacks", program]:
                return masked(f"judge.py needs {program}: the session's image must have it")
        asking = asyncio.ensure_future(_perform(subject, request, variables))
        try:
            done = await meter.within(asking)
        finally:
            abandon(asking)
        return done if isinstance(done, Verdict) else json.dumps(done).encode()

    options = {**run_options(limits, resets=False), "lifetime": _LIFETIME}
    async with session.sandbox(counted=False, **options) as judge:
        await judge.upload(folder, "/workspace")
        verdict = await judged(judge, tests, limits_of_judge(limits), answer)
    return dataclasses.replace(verdict, trust="shared" if shared else "isolated")


async def _perform(sandbox: Sandbox, request: Any, variables: Mapping[str, str]) -> list[Any]:
    """Run a program or access a file in the subject's sandbox, as a test requested.

    Returns ["done", value] or ["error", exception class, text].
    """
    try:
        match request:
            case ["run", argv, stdin, cwd, timeout, env]:
                limits = Limits(timeout=timeout, deadline=_DEADLINE + 10 * timeout)
                before = await sandbox.usage()
                process = sandbox.exec(
                    argv,
                    setup=_programs.limited(limits),
                    stdin=stdin,
                    cwd=cwd,
                    env={**variables, **env},
                    output_limit=limits.output_limit,
                )
                return _result_message(await watched(sandbox, process, limits, before=before))
            case ["read", path, limit]:
                return ["done", (await sandbox.read_file(path, max_bytes=limit)).hex()]
            case ["files", path, limit]:
                with tempfile.TemporaryDirectory(prefix="sandboxkit-judge-") as copy:
                    target = Path(copy, "files")
                    await sandbox.download(path, target, max_bytes=limit)
                    return ["done", await asyncio.to_thread(_contents, target)]
            case ["write", path, content]:
                await sandbox.write_file(path, bytes.fromhex(content))
            case ["remove", path]:
                with contextlib.suppress(SandboxFileNotFoundError):
                    await sandbox.remove(path, recursive=True)
            case _:
                raise ValueError("no such request")
    except CommandStartError as error:
        missing = error.errno == errno.ENOENT
        return ["error", "FileNotFoundError" if missing else "OSError", str(error)]
    except SandboxFileNotFoundError as error:
        return ["error", "FileNotFoundError", str(error)]
    except SandboxFileError as error:
        return ["error", "OSError", str(error)]
    except (TypeError, ValueError) as error:  # the submission may have chosen a path
        return ["error", "ValueError", str(error)]
    return ["done", None]


def _contents(folder: Path) -> dict[str, str]:
    files = (each for each in folder.rglob("*") if each.is_file())
    return {str(each.relative_to(folder)): each.read_bytes().hex() for each in files}


def _result_message(result: ProcessResult | Verdict) -> list[Any]:
    if isinstance(result, ProcessResult):
        return ["done", [result.returncode, result.stdout]]
    if result.outcome is Outcome.KILLED:
        return ["done", [KILLED, ""]]
    kind = "TimeoutError" if result.outcome is Outcome.TIMEOUT else "OSError"
    return ["error", kind, result.detail]

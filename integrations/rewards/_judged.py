"""Grades with tests in one sandbox and the submission in another; calls between them are sent as data."""

import asyncio
import contextlib
import dataclasses
import errno
import json
import math
import time
from collections.abc import Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sandboxkit import (
    CommandStartError,
    ConfigurationError,
    Operation,
    Process,
    ProcessResult,
    Sandbox,
    SandboxFileError,
    SandboxFileNotFoundError,
    SandboxTerminatedError,
    Session,
)
from sandboxkit.integrations.rewards import _programs
from sandboxkit.integrations.rewards._boundary import caused_by_command
from sandboxkit.integrations.rewards._judges import judges
from sandboxkit.integrations.rewards._limits import Limits
from sandboxkit.integrations.rewards._programs import SandboxProgram, limited, processor_seconds
from sandboxkit.integrations.rewards._run import (
    KILLED,
    OUT_OF_TIME,
    RunMeter,
    abandon,
    begin,
    ended,
    kill,
    retried,
    watched,
)
from sandboxkit.integrations.rewards._tests import Tests, load_tests
from sandboxkit.integrations.rewards._values import shown
from sandboxkit.integrations.rewards._verdict import Outcome, Verdict, failed, masked

_JUDGE_LINE = 64 << 20
"""Maximum size in bytes of one line from the judge, which contains the arguments of a test's call."""
_JUDGE_MEMORY = 1 << 30
_JUDGE_SECONDS = 10
"""CPU time of a judge in seconds, on top of the submission's."""
_LOOK = 0.5
"""Minimum interval in seconds between two checks of a judge that has exceeded its time limit."""

_CHUNK_LIMIT = 64 * 1024  # limits only the output that is kept: lines are read while they arrive
_DEADLINE = 600.0


async def judged(session: Session, submission: str, tests: Tests, limits: Limits) -> Verdict:
    """Grade a submission by tests that never share a sandbox with it.

    The subject, which runs the submission, gets a pristine sandbox. The judge's sandbox is kept for
    the session's next submissions. If the infrastructure still fails after `limits.retries`, the
    outcome is INFRA_ERROR.
    """

    async def attempt(sandbox: Sandbox, alone: bool) -> Verdict:
        try:
            await sandbox.start()  # first, so that a run in the queue does not occupy a judge
            async with judges(session).borrow(alone=alone) as judge:
                return await _Grading(judge, sandbox, tests, limits, submission, alone).run()
        except JudgeKilled as error:
            if not alone:  # other judges in the same sandbox may be the cause
                raise
            return _killed(error)

    return await retried(session, limits, attempt)


async def judge_folder(
    session: Session, subject: Sandbox, folder: Path, limits: Limits | None = None
) -> Verdict:
    """Grade the contents of the sandbox `subject` with `folder/judge.py`, which runs in another sandbox.

    Every top-level function `test_...()` of judge.py is a check; they run in order until one raises.
    They reach the subject through `import subject`: run(), read_file(), write_file(), remove() and
    load(). The folder's other files are in the judge's working directory. The judge has only
    Python's standard library. Does not stop the subject. Raises ConfigurationError for unusable
    tests. Infrastructure errors are raised and not turned into a verdict.
    """
    tests = load_tests(folder)
    async with judges(session).borrow(alone=True) as judge:
        await judge.upload(folder, "/workspace")
        try:
            grading = _Grading(judge, subject, tests, limits or Limits(), "", alone=True)
            verdict = await grading.run()
        except JudgeKilled as error:
            verdict = _killed(error)
    return dataclasses.replace(verdict, trust="isolated")


class LineTooLong(Exception):
    """A process sent a line longer than the limit."""


class Ended(Exception):
    """A process ended before it sent the expected line."""

    def __init__(self, result: ProcessResult) -> None:
        super().__init__(result.returncode)
        self.result = result


class Lines:
    """A process that reads requests on stdin and writes one response to each on stdout, as lines."""

    def __init__(self, sandbox: Sandbox, program: SandboxProgram, first: Any, limit: int) -> None:
        """Start the process and send `first` as JSON. Its lines may have up to `limit` bytes."""
        self._process: Process = begin(sandbox, program, stdin=True, output_limit=_CHUNK_LIMIT)
        self._chunks = self._process.stdout.bytes().__aiter__()
        self._unread, self._searched = bytearray(), 0
        self._first = self._write(json.dumps(first).encode())
        self._limit = limit

    async def exchange(self, line: bytes | None) -> bytes:
        """Write `line`, if any, and return the next line from the process. Raises Ended and LineTooLong."""
        try:
            await self._first
            if line is not None:
                await self._write(line)
        except BrokenPipeError:
            pass  # the process ended; its last output may still say why
        while (end := self._unread.find(b"\n", self._searched)) < 0:
            self._searched = len(self._unread)
            if self._searched > self._limit:
                raise LineTooLong
            try:
                self._unread += await anext(self._chunks)
            except StopAsyncIteration:
                raise Ended(await self._process) from None
        answer = bytes(self._unread[:end])
        del self._unread[: end + 1]
        self._searched = 0
        if len(answer) > self._limit:
            raise LineTooLong
        return answer

    def _write(self, line: bytes) -> Operation[None]:
        return self._process.stdin.write(line + b"\n")

    async def stop(self) -> None:
        """Kill the process if it still runs."""
        await kill(self._process)


class JudgeKilled(SandboxTerminatedError):
    """The judge was killed or late, or its sandbox ran out of memory, perhaps because of other judges."""

    def __init__(self, message: str, *, sandbox_id: str | None) -> None:
        super().__init__(message, sandbox_id=sandbox_id, by_command=True)


def _killed(error: JudgeKilled) -> Verdict:
    """Return the verdict for a judge that was killed while alone in its sandbox."""
    return failed(f"the tests ended: {error}", Outcome.KILLED)


@dataclass
class _Grading:
    judge: Sandbox
    sandbox: Sandbox
    tests: Tests
    limits: Limits
    submission: str
    alone: bool
    """Whether the judge's sandbox runs no other judge."""
    _watch: RunMeter | None = field(default=None, init=False)
    _subject: Lines | None = field(default=None, init=False)
    _judge_answered: bool = field(default=False, init=False)
    _touched: bool = field(default=False, init=False)
    """Whether the tests have run commands or changed files in the subject's sandbox."""
    _judge_waited: float = field(default=0.0, init=False)
    _excused: float = field(default=0.0, init=False)

    def __post_init__(self) -> None:
        self._budget = _total_limits(self.limits, len(self.tests.sources))
        longest = self._budget.longest
        # Even after the slowest submission, the judge must end before the deadline.
        self._judge_seconds = min(longest + _JUDGE_SECONDS, (self.limits.deadline - longest) / 2)

    async def run(self) -> Verdict:
        """Run the judge until it reports its results; return the verdict. Raises SandboxError."""
        seconds = math.ceil(self._budget.timeout) + _JUDGE_SECONDS
        job = {**self.tests.job(), "seconds": seconds, "memory": _JUDGE_MEMORY}
        lines = Lines(self.judge, _programs.judge(self.limits.python), job, _JUDGE_LINE)
        if self.submission:
            self._started()  # while the judge starts
        try:
            return await self._relay(lines)
        except Ended as end:
            return self._without_judge(end.result.returncode)
        except SandboxTerminatedError as error:
            if caused_by_command(error) and error.sandbox_id == self.judge.id:
                raise JudgeKilled(str(error), sandbox_id=self.judge.id) from error
            raise
        except LineTooLong:
            return failed("the tests pass more data to the submission than can be sent")
        finally:
            await lines.stop()
            if self._subject is not None:
                await self._subject.stop()

    async def _relay(self, judge: Lines) -> Verdict:
        answer: bytes | None = None
        await self.judge.start()  # outside every time limit
        while True:
            line = await self._next_line(judge.exchange(answer))
            if isinstance(line, Verdict):
                return line
            self._judge_answered = True
            kind, content = line[:1], line[1:]
            if kind == b"D":
                return self._verdict(json.loads(content))
            if kind == b"H":
                self._touched = True
                reply = await self._in_time(_answer_for_machine(self.sandbox, json.loads(content)))
            else:
                reply = await self._forward(content)
            if isinstance(reply, Verdict):
                return reply
            answer = reply

    async def _next_line(self, answer: Coroutine[Any, Any, bytes]) -> bytes | Verdict:
        """Wait for the judge's next line, up to `_judge_seconds` summed over all lines.

        The limit exists because tests may wait forever for an action of the submission.
        Time in which others kept the judge off the CPU does not count. In a sandbox shared with
        other judges that time is unknown, so a late judge raises JudgeKilled and is retried alone.
        """
        asking = asyncio.ensure_future(answer)
        try:
            while True:
                allowed, begun = self._judge_seconds, time.monotonic()
                left = allowed + self._excused - self._judge_waited
                await asyncio.wait([asking], timeout=max(left, _LOOK))
                self._judge_waited += time.monotonic() - begun
                if asking.done():
                    return asking.result()
                if not self.alone:
                    raise JudgeKilled("it exceeded its time limit", sandbox_id=self.judge.id)
                usage = await self.judge.usage()
                starved = (usage and usage.starved_seconds) or 0.0
                self._excused = min(starved, self._judge_waited)
                if self._judge_waited >= allowed + self._excused:
                    text = "the tests waited for the submission until their time limit"
                    return failed(text, Outcome.TIMEOUT)
        finally:
            abandon(asking)

    async def _forward(self, request: bytes) -> bytes | Verdict:
        """Forward a request to the submission; return its response, or the verdict if there is none."""
        try:
            return await self._in_time(self._started().exchange(request))
        except CommandStartError as error:
            if self._touched and not error.retryable:
                return failed(f"the submission's own process: {shown(error)}")
            raise
        except LineTooLong:
            text = f"one response of the submission has more than {self.limits.output_limit} bytes"
            return failed(text, Outcome.TRUNCATED)
        except Ended as end:
            assert self._watch is not None
            # Only the kept copy of the output may be truncated; the lines themselves were checked.
            verdict = await self._watch.judge(end.result, flooded=False)
            return verdict if isinstance(verdict, Verdict) else ended(verdict)

    async def _in_time(self, answer: Coroutine[Any, Any, bytes]) -> bytes | Verdict:
        """Wait for the subject's response; the submission's limits apply to the sum of all such waits."""
        asking = asyncio.ensure_future(answer)
        try:
            if self._watch is None:
                await self.sandbox.start()
                before = None if self.submission else await self.sandbox.usage()
                self._watch = RunMeter(self.sandbox, self._budget, before)
            return await self._watch.within(asking)
        finally:
            abandon(asking)

    def _started(self) -> Lines:
        if self._subject is None:
            job = {
                "code": self.submission,
                "setup": "",
                "module": self.tests.module,
                "live": self.tests.classes,
                "seconds": processor_seconds(self._budget),
            }
            program = _programs.subject(self.limits.python)
            self._subject = Lines(self.sandbox, program, job, self.limits.output_limit)
        return self._subject

    def _verdict(self, results: Any) -> Verdict:
        for number, (outcome, detail) in enumerate(results, 1):
            if outcome != "passed":
                return failed(f"test {number}: {shown(detail)}", Outcome(outcome))
        if len(results) != len(self.tests.sources):
            raise AssertionError(f"{len(results)} results of {len(self.tests.sources)} tests")
        return Verdict(Outcome.PASSED, 1.0, "policy", f"{self.tests.count} tests")

    def _without_judge(self, returncode: int) -> Verdict:
        if returncode == OUT_OF_TIME:
            text = "the tests used up their CPU time on the values that the submission returned"
            return failed(text, Outcome.TIMEOUT)
        text = f"the judge ended with status {returncode}"
        if self._judge_answered or returncode == KILLED or not self.alone:
            raise JudgeKilled(text, sandbox_id=self.judge.id)
        return masked(text)


def _total_limits(limits: Limits, tests: int) -> Limits:
    """Return the submission's limits for `tests` tests together, well below the deadline."""
    most = max(limits.timeout, limits.deadline / 4)
    seconds = min(limits.timeout * tests, most)
    longest = dataclasses.replace(limits, timeout=seconds, wall=None).longest
    more = seconds if limits.wall is not None else min(longest, limits.deadline / 2)
    return dataclasses.replace(limits, timeout=seconds, wall=max(limits.longest, more))


async def _answer_for_machine(sandbox: Sandbox, request: Any) -> bytes:
    return json.dumps(await _perform(sandbox, request)).encode()


async def _perform(sandbox: Sandbox, request: Any) -> list[Any]:
    """Run a program or access a file in the subject's sandbox, as a test requested.

    Returns ["done", value] or ["error", exception class, text].
    """
    try:
        before = await sandbox.usage() if request[0] == "run" else None
        match request:
            case ["run", argv, stdin, cwd, timeout, env]:
                limits = Limits(timeout=timeout, deadline=_DEADLINE + 10 * timeout)
                process = sandbox.exec(
                    argv,
                    setup=limited(limits),
                    stdin=stdin,
                    cwd=cwd,
                    env=env,
                    output_limit=limits.output_limit,
                )
                return _result_message(await watched(sandbox, process, limits, before=before))
            case ["read", path, limit]:
                return ["done", (await sandbox.read_file(path, max_bytes=limit)).hex()]
            case ["write", path, content]:
                await sandbox.write_file(path, bytes.fromhex(content))
            case ["remove", path]:
                with contextlib.suppress(SandboxFileNotFoundError):
                    await sandbox.remove(path, recursive=True)
            case _:
                raise ConfigurationError(f"unknown request of the judge: {str(request)[:80]}")
    except CommandStartError as error:
        missing = error.errno == errno.ENOENT
        return ["error", "FileNotFoundError" if missing else "OSError", str(error)]
    except SandboxFileNotFoundError as error:
        return ["error", "FileNotFoundError", str(error)]
    except SandboxFileError as error:
        return ["error", "OSError", str(error)]
    return ["done", None]


def _result_message(result: ProcessResult | Verdict) -> list[Any]:
    if isinstance(result, ProcessResult):
        return ["done", [result.returncode, result.stdout]]
    if result.outcome is Outcome.KILLED:
        return ["done", [KILLED, ""]]
    kind = "TimeoutError" if result.outcome is Outcome.TIMEOUT else "OSError"
    return ["error", kind, result.detail]

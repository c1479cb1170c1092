"""Grading by tests in one sandbox over a submission in another: calls cross between them as data."""

import asyncio
import dataclasses
import json
import math
import time
from collections.abc import Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sandboxkit import (
    CommandStartError,
    ProviderUnavailableError,
    Sandbox,
    SandboxTerminatedError,
    Session,
)
from sandboxkit.integrations.rewards import _programs
from sandboxkit.integrations.rewards._boundary import brought_on
from sandboxkit.integrations.rewards._conversation import Ended, Lines, LineTooLong, machine
from sandboxkit.integrations.rewards._isolated import (
    Limits,
    Watch,
    ended,
    pristine,
    processor_seconds,
    retried,
)
from sandboxkit.integrations.rewards._judges import judges
from sandboxkit.integrations.rewards._tests import Tests, load_tests
from sandboxkit.integrations.rewards._values import shown
from sandboxkit.integrations.rewards._verdict import Outcome, Verdict, failed, masked

_JUDGE_LINE = 64 << 20
"""Bytes of one line of a judge, which is trusted and sends what tests pass to the submission."""
_JUDGE_MEMORY = 1 << 30
_JUDGE_SECONDS = 10
"""Of processor time for a judge, above what the submission has."""
_FIRST_LOOK = 5.0
"""Seconds of waiting for a judge after which it is asked whether others have the processors."""
_KILLED, _OUT_OF_TIME = 137, 152  # 128 + SIGKILL, 128 + SIGXCPU


async def judged(session: Session, submission: str, tests: Tests, limits: Limits) -> Verdict:
    """Grade a submission by tests that never share a sandbox with it.

    The subject's sandbox is pristine; the judge's is kept for the session's next submission. Past
    the retries of `limits` a failure of the infrastructure is the outcome INFRA_ERROR.
    """

    async def attempt() -> Verdict:
        try:
            return await _apart(session, submission, tests, limits, alone=False)
        except JudgeKilled:
            pass  # perhaps for its neighbours' use of memory: once more without any
        try:
            wall = max(limits.timeout, min(limits.longest, limits.deadline / 4))
            brief = dataclasses.replace(limits, wall=wall)
            return await _apart(session, submission, tests, brief, alone=True)
        except JudgeKilled as error:
            return _killed(error)

    return await retried(session, limits, attempt)


async def _apart(
    session: Session, submission: str, tests: Tests, limits: Limits, *, alone: bool
) -> Verdict:
    async with judges(session).borrow(alone=alone) as judge:
        sandbox = pristine(session, limits)
        try:
            return await _Grading(judge, sandbox, tests, limits, submission).run()
        finally:
            # Nobody waits for the deletion; one that fails is tried again by session.close().
            sandbox.stop()


async def judge_folder(
    session: Session, subject: Sandbox, folder: Path, limits: Limits | None = None
) -> Verdict:
    """Grade what is in the sandbox `subject` by `folder/judge.py`, in a sandbox of its own.

    Every top-level function `test_...()` of judge.py is a check, run in order until one raises; it
    reaches the subject through `import subject`: run(), read_file(), write_file(), remove() and
    load(). The folder's other files lie in the judge's working directory. Python's standard library
    is all that the judge has. Raises what the infrastructure raises; the subject is not stopped.
    """
    tests = load_tests(folder)
    async with judges(session).borrow(alone=True) as judge:
        await judge.upload(folder, "/workspace")
        try:
            verdict = await _Grading(judge, subject, tests, limits or Limits(), "").run()
        except JudgeKilled as error:
            verdict = _killed(error)
    return dataclasses.replace(verdict, trust="isolated")


def _killed(error: ProviderUnavailableError) -> Verdict:
    """The verdict where a judge had no neighbours: it was killed with what it was given."""
    return Verdict(Outcome.KILLED, 0.0, "policy", f"the tests ended: {error}")


class JudgeKilled(ProviderUnavailableError):
    """The judge was killed, or its sandbox ran out of memory."""


@dataclass
class _Grading:
    judge: Sandbox
    sandbox: Sandbox
    tests: Tests
    limits: Limits
    submission: str
    _watch: Watch | None = field(default=None, init=False)
    _subject: Lines | None = field(default=None, init=False)
    _heard: bool = field(default=False, init=False)
    _touched: bool = field(default=False, init=False)
    """Whether tests had something done in the subject's sandbox before."""
    _judge_waited: float = field(default=0.0, init=False)
    _starved: float | None = field(default=None, init=False)
    _excused: float = field(default=0.0, init=False)

    async def run(self) -> Verdict:
        """The verdict. Raises SandboxError."""
        seconds = math.ceil(self._budget().timeout) + _JUDGE_SECONDS
        job = {**self.tests.job(), "seconds": seconds, "memory": _JUDGE_MEMORY}
        lines = Lines(self.judge, _programs.judge(self.limits.python), job, _JUDGE_LINE)
        if self.submission:
            self._started()  # while the judge starts
        try:
            return await self._carry(lines)
        except Ended as end:
            return self._without_judge(end.result.returncode)
        except SandboxTerminatedError as error:
            if brought_on(error) and error.sandbox_id == self.judge.id:
                raise JudgeKilled(str(error), sandbox_id=self.judge.id) from error
            raise
        except LineTooLong:
            return failed("the tests pass more data to the submission than can be sent")
        finally:
            await lines.stop()
            if self._subject is not None:
                await self._subject.stop()

    async def _carry(self, judge: Lines) -> Verdict:
        answer: bytes | None = None
        while True:
            line = await self._of_judge(judge.ask(answer))
            if isinstance(line, Verdict):
                return line
            self._heard = True
            kind, content = line[:1], line[1:]
            if kind == b"D":
                return self._verdict(json.loads(content))
            if kind == b"H":
                self._touched = True
                told = await self._in_time(machine(self.sandbox, json.loads(content)))
            else:
                told = await self._asked(content)
            if isinstance(told, Verdict):
                return told
            answer = told

    async def _of_judge(self, answer: Coroutine[Any, Any, bytes]) -> bytes | Verdict:
        """Wait for the judge: it may wait for what the submission does not do, but not for ever."""
        asking = asyncio.ensure_future(answer)
        try:
            while not asking.done():
                allowed = self._budget().longest + _JUDGE_SECONDS + self._excused
                begun = time.monotonic()
                pause = _FIRST_LOOK if self._starved is None else allowed - self._judge_waited
                await asyncio.wait([asking], timeout=max(pause, 0.0))
                self._judge_waited += time.monotonic() - begun
                if not asking.done():
                    usage = await self.judge.usage()
                    starved = (usage and usage.starved_seconds) or 0.0
                    if self._starved is None:
                        self._starved = starved
                    self._excused = min(starved - self._starved, self._judge_waited)
                    allowed = self._budget().longest + _JUDGE_SECONDS + self._excused
                    if self._judge_waited >= allowed:
                        text = "the tests waited in vain for something of the submission"
                        return Verdict(Outcome.TIMEOUT, 0.0, "policy", text)
            return asking.result()
        finally:
            asking.cancel()

    async def _asked(self, request: bytes) -> bytes | Verdict:
        """The submission's answer, or why there is none."""
        try:
            return await self._in_time(self._started().ask(request))
        except CommandStartError as error:
            if self._touched and not error.retryable:
                return failed(f"the submission's own process: {shown(error)}")
            raise
        except LineTooLong:
            text = f"more than {self.limits.output_limit} bytes in one answer"
            return Verdict(Outcome.TRUNCATED, 0.0, "policy", text)
        except Ended as end:
            assert self._watch is not None
            verdict = await self._watch.judge(end.result)
            return verdict if isinstance(verdict, Verdict) else ended(verdict)

    async def _in_time(self, answer: Coroutine[Any, Any, bytes]) -> bytes | Verdict:
        """Wait for the subject; all waiting for it is together within the submission's limits."""
        asking = asyncio.ensure_future(answer)
        try:
            if self._watch is None:
                await self.sandbox.start()
                before = None if self.submission else await self.sandbox.usage()
                self._watch = Watch(self.sandbox, self._budget(), before)
            return await self._watch.within(asking)
        finally:
            asking.cancel()

    def _budget(self) -> Limits:
        """The submission's limits for all tests together, which leave the deadline far away."""
        limits = self.limits
        most = max(limits.timeout, limits.deadline / 4)
        seconds = min(limits.timeout * len(self.tests.sources), most)
        wall = None if limits.wall is None else max(limits.wall, seconds)
        return dataclasses.replace(limits, timeout=seconds, wall=wall)

    def _started(self) -> Lines:
        if self._subject is None:
            job = {
                "code": self.submission,
                "setup": "",
                "module": self.tests.module,
                "seconds": processor_seconds(self._budget()),
            }
            program = _programs.subject(self.limits.python)
            self._subject = Lines(self.sandbox, program, job, self.limits.output_limit)
        return self._subject

    def _verdict(self, results: Any) -> Verdict:
        for number, (outcome, detail) in enumerate(results, 1):
            if outcome != "passed":
                text = f"test {number}: {shown(detail)}"
                return Verdict(Outcome(outcome), 0.0, "policy", text)
        if len(results) != len(self.tests.sources):
            raise AssertionError(f"{len(results)} results of {len(self.tests.sources)} tests")
        return Verdict(Outcome.PASSED, 1.0, "policy", f"{self.tests.count} tests")

    def _without_judge(self, returncode: int) -> Verdict:
        if returncode == _OUT_OF_TIME:
            text = "the tests took too long with what the submission returned"
            return Verdict(Outcome.TIMEOUT, 0.0, "policy", text)
        if self._heard or returncode == _KILLED:
            text = f"the judge ended with status {returncode}"
            raise JudgeKilled(text, sandbox_id=self.judge.id)
        return masked(f"the judge ended with status {returncode}")

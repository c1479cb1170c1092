"""Grading by tests in one sandbox over a submission in another: calls cross between them as data."""

import asyncio
import contextlib
import dataclasses
import json
import math
from collections.abc import AsyncIterator, Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sandboxkit import ConfigurationError, ProviderUnavailableError, Sandbox, Session
from sandboxkit.integrations.rewards import _programs
from sandboxkit.integrations.rewards._conversation import Ended, Lines, LineTooLong, machine
from sandboxkit.integrations.rewards._isolated import (
    Limits,
    Watch,
    ended,
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
_KILLED, _OUT_OF_TIME = 137, 152  # 128 + SIGKILL, 128 + SIGXCPU


async def judged(session: Session, submission: str, tests: Tests, limits: Limits) -> Verdict:
    """Grade a submission by tests that never share a sandbox with it.

    The subject's sandbox is pristine; the judge's is kept for the session's next submission. Past
    the retries of `limits` a failure of the infrastructure is the outcome INFRA_ERROR.
    """

    alone = False  # a judge that was killed may have been so for its neighbours' use of memory

    async def attempt() -> Verdict:
        nonlocal alone
        async with (
            judges(session).borrow(alone=alone) as judge,
            _pristine(session, limits) as sandbox,
        ):
            try:
                return await _Grading(judge, sandbox, tests, limits, submission).run()
            except JudgeKilled:
                if alone:
                    text = "the tests were killed with what the submission returned"
                    return Verdict(Outcome.OOM, 0.0, "policy", text)
                raise
            finally:
                alone = True

    return await retried(limits, attempt)


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
        verdict = await _Grading(judge, subject, tests, limits or Limits(), "").run()
    return dataclasses.replace(verdict, trust="isolated")


@contextlib.asynccontextmanager
async def _pristine(session: Session, limits: Limits) -> AsyncIterator[Sandbox]:
    sandbox = session.sandbox(
        command=None,
        files={},
        network="none",
        profile="strict",
        memory_mb=limits.memory_mb,
        lifetime=limits.deadline + 600,
        detach=False,
    )
    try:
        yield sandbox
    finally:
        await sandbox.stop()


class JudgeKilled(ProviderUnavailableError):
    """The judge was killed, perhaps for the memory that its neighbours in the sandbox use."""


@dataclass
class _Grading:
    judge: Sandbox
    sandbox: Sandbox
    tests: Tests
    limits: Limits
    submission: str
    _watch: Watch | None = field(default=None, init=False)
    _subject: Lines | None = field(default=None, init=False)

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
        except LineTooLong:
            return failed("the tests pass more data to the submission than can be sent")
        finally:
            await lines.stop()
            if self._subject is not None:
                await self._subject.stop()

    async def _carry(self, judge: Lines) -> Verdict:
        answer: bytes | None = None
        while True:
            line = await judge.ask(answer)
            kind, content = line[:1], line[1:]
            if kind == b"D":
                return self._verdict(json.loads(content))
            if kind == b"H":
                told = await self._in_time(machine(self.sandbox, json.loads(content)))
            else:
                told = await self._asked(content)
            if isinstance(told, Verdict):
                return told
            answer = told

    async def _asked(self, request: bytes) -> bytes | Verdict:
        """The submission's answer, or why there is none."""
        try:
            return await self._in_time(self._started().ask(request))
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
        """The submission's limits for all tests together."""
        seconds = self.limits.timeout * len(self.tests.sources)
        deadline = max(self.limits.deadline, seconds + 1)
        wall = None if self.limits.wall is None else max(self.limits.wall, seconds)
        return dataclasses.replace(self.limits, timeout=seconds, deadline=deadline, wall=wall)

    def _started(self) -> Lines:
        if self._subject is None:
            job = {
                "code": self.submission,
                "setup": "",
                "module": self.tests.module,
                "seconds": processor_seconds(self._budget()),
            }
            argv = _programs.subject(self.limits.python)
            self._subject = Lines(self.sandbox, argv, job, self.limits.output_limit)
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
        if returncode in (126, 127):
            raise ConfigurationError(
                f"the judge's sandbox has no {self.limits.python!r}: judges need Python 3.10 in the "
                "session's image, or Limits(python=...)"
            )
        if returncode == _OUT_OF_TIME:
            text = "the tests took too long with what the submission returned"
            return Verdict(Outcome.TIMEOUT, 0.0, "policy", text)
        if returncode == _KILLED:
            raise JudgeKilled("the judge was killed", sandbox_id=self.judge.id)
        return masked(f"the judge ended with status {returncode}")

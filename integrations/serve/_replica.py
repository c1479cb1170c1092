"""One replica: its sessions, its limits, and the jobs that requests start: gradings, programs and commands."""

import asyncio
import contextlib
import dataclasses
import functools
import time
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from typing import Any, TypeVar

from pydantic import BaseModel

from sandboxkit import ConfigurationError, SandboxError, Session
from sandboxkit.integrations.rewards import (
    Grader,
    Limits,
    Outcome,
    Verdict,
    extract_code,
    grading_session,
    run_program,
)
from sandboxkit.integrations.rewards.programs import (
    ProgramInput,
    SourceRun,
    language_of,
    run_source,
)
from sandboxkit.integrations.serve import _allowance
from sandboxkit.integrations.serve._admission import Admission
from sandboxkit.integrations.serve._bodies import check_task, read_label
from sandboxkit.integrations.serve._config import ServiceConfig
from sandboxkit.integrations.serve._fair_room import FairRoom
from sandboxkit.integrations.serve._job import Job, Jobs
from sandboxkit.integrations.serve._metrics import ServiceMetrics
from sandboxkit.integrations.serve._models import (
    CompilerResult,
    ExecRequest,
    GradeLine,
    GradeRequest,
    RunRequest,
    RunResult,
    ScoreRequest,
)
from sandboxkit.integrations.serve._sandboxes import ClientSandboxes
from sandboxkit.integrations.serve._tokens import Token
from sandboxkit.integrations.serve._workers import Workers

T = TypeVar("T")

_READY_SECONDS = 5.0
"""How long an answer of `/readyz` holds: nobody needs a token to ask, and each look starts processes."""

_LABEL = 16 << 10
"""Characters of a label that are parsed in this process."""
_TASK, _TEXTS = 2 << 10, 64 << 10
"""Characters of a task's tests and of completions that are parsed in this process."""
_OUTPUT = 1 << 20
"""Bytes of output that a response may have."""
_PYTHON = "python"

Ran = RunResult | str
"""A program's result, or the reason why there is none."""
Numbered = tuple[int, Verdict]


class Replica:
    """Grades submissions, runs programs and lends sandboxes while it is open."""

    def __init__(self, config: ServiceConfig) -> None:
        self.metrics = ServiceMetrics()
        self._config = config
        self.workers = Workers()
        self.admission = Admission(config.queue, len(config.tokens))
        self._looking: asyncio.Task[str] | None = None
        self._looked = 0.0
        self._grades = Jobs[GradeLine](lambda lines: all(each.reward is not None for each in lines))
        self._runs = Jobs[Ran](lambda results: not any(isinstance(each, str) for each in results))

    async def open(self) -> None:
        """Open the sessions; their sandboxes start with the first request."""
        config = self._config
        self._session = grading_session(
            config.grader, config.provider, pool=config.pool, tags=config.tags
        )
        options: dict[str, Any] = {
            **config.options,
            "tags": config.tags,
        }  # Any: as in ServiceConfig
        self._lent = Session(config.provider, **options)
        self._grading = GradingQueue(self._session, config.grader, self.workers)
        self.sandboxes = ClientSandboxes(self._lent, config)
        self._tending = asyncio.create_task(self.sandboxes.tend())

    async def close(self) -> None:
        """Stop every sandbox of this replica."""
        self._tending.cancel()
        await self._lent.close()
        await self._session.close()

    async def not_ready(self) -> str:
        """Return the reason why no sandbox can be started, or "" if one can; it is at most 5 s old."""
        now = time.monotonic()
        if self._looking is None or (self._looking.done() and now > self._looked + _READY_SECONDS):
            self._looking, self._looked = asyncio.create_task(self._look()), now
        return await asyncio.shield(self._looking)

    async def _look(self) -> str:
        try:
            found = await self._session.diagnose()
        except SandboxError as error:
            return str(error)
        return "" if found.available else found.detail

    def page(self) -> bytes:
        """Return the current metrics in Prometheus' text format."""
        self.metrics.admitted.set(self.admission.admitted)
        if self._session.pool:
            stats = self._session.pool_stats()
            for state in ("ready", "making", "resetting", "taken"):
                self.metrics.sandboxes.labels(state).set(getattr(stats, state))
        return self.metrics.page()

    def grade(self, client: Token, body: GradeRequest, key: str | None) -> Job[GradeLine]:
        """Start grading, or return the job of an equal request with the same `key`.

        Raises BusyError, and ConfigurationError for a used key, or for memory beyond the service's.
        """
        self._check_memory(body.task.get("memory_limit_mb"))
        units = len(body.submissions)
        return self._job(self._grades, client, key, body, lambda: self._graded(client, body), units)

    async def score(self, client: Token, body: ScoreRequest) -> Job[GradeLine]:
        """Start grading one completion. Raises BusyError, and ConfigurationError for an invalid label."""
        task = await self.workers.run(client.name, _LABEL, read_label, body.label)
        wanted = GradeRequest(task=task, submissions=[body.response], extract=True)
        return self.grade(client, wanted, None)

    def run(self, client: Token, body: RunRequest, key: str | None) -> Job[Ran]:
        """Start a program, or return the job of an equal request with the same `key`.

        Raises BusyError, and ConfigurationError for an unknown language, for a timeout that is not below
        the service's deadline, for memory beyond the service's, and if the key was used with another request.
        """
        self._check_memory(body.memory_mb)
        _check_timeouts(body, self._config.deadline)
        return self._job(self._runs, client, key, body, lambda: self._ran(client, body))

    def exec(self, client: Token, sandbox_id: str, body: ExecRequest) -> Job[RunResult]:
        """Start a command in a client's sandbox. Raises BusyError."""
        begin = functools.partial(self.sandboxes.exec, client, sandbox_id, body)
        return self._job(Jobs(lambda _: False), client, None, body, begin)

    async def read(self, client: Token, sandbox_id: str, path: str) -> AsyncGenerator[bytes, None]:
        """Yield a file's content in pieces, as a unit of work. Raises BusyError, SandboxNotFoundError."""
        content = self.sandboxes.read(client, sandbox_id, path)
        with self.admission.unit(client):
            async with contextlib.aclosing(content) as pieces:
                async for piece in pieces:
                    yield piece

    def _check_memory(self, megabytes: Any) -> None:  # Any: JSON, which a grader checks
        _allowance.check(self._config, {"memory_mb": megabytes}, self._session.provider_name)

    def _job(
        self,
        jobs: Jobs[T],
        client: Token,
        key: str | None,
        body: BaseModel,
        work: Callable[[], AsyncGenerator[T, None]],
        units: int = 1,
    ) -> Job[T]:
        def begin() -> Job[T]:
            self.admission.enter(client, units)
            return Job(work(), lambda: self.admission.leave(client, units))

        if key is None:
            return begin()
        return jobs.get(client.name, key, repr(body).encode(errors="surrogatepass"), begin)

    async def _graded(self, client: Token, body: GradeRequest) -> AsyncGenerator[GradeLine, None]:
        deadline = min(body.deadline or self._config.deadline, self._config.deadline)
        verdicts = self._grading.grade(
            client.name, body.task, body.submissions, extract=body.extract, deadline=deadline
        )
        async for index, verdict in verdicts:
            self.metrics.outcomes.labels(client.name, verdict.outcome.value).inc()
            yield GradeLine.of(index, verdict)

    async def _ran(self, client: Token, body: RunRequest) -> AsyncGenerator[Ran, None]:
        limits = getattr(self._config.grader, "limits", None)
        limits = limits if isinstance(limits, Limits) else Limits()
        limits = dataclasses.replace(
            limits,
            timeout=body.timeout,
            wall=body.timeout,
            output_limit=min(limits.output_limit, _OUTPUT),
            memory_mb=body.memory_mb or limits.memory_mb,
            # At least the grader's: so both use the same sandboxes.
            deadline=max(limits.deadline, self._config.deadline),
        )
        result: RunResult | Verdict
        try:
            async with asyncio.timeout(self._config.deadline):  # includes the time in the queue
                async with self._grading.room.place(client.name):
                    result = await _run(self._session, body, limits)
        except TimeoutError:
            detail = f"not run within deadline={self._config.deadline:g} s"
            result = Verdict(Outcome.INFRA_ERROR, 0.0, "infra", detail)
        if isinstance(result, Verdict):
            self.metrics.outcomes.labels(client.name, result.outcome.value).inc()
            yield result.detail
            return
        self.metrics.outcomes.labels(client.name, result.outcome).inc()
        yield result


class GradingQueue:
    """Grades submissions in one session."""

    def __init__(self, session: Session, grader: Grader, workers: Workers) -> None:
        self._session, self._grader, self._workers = session, grader, workers
        # The cases of more submissions would interleave, and all would finish late; and what waits in the
        # session's own queue would be ahead of other clients' work.
        self.room = FairRoom(session.pool or 64)

    async def grade(
        self,
        client: str,
        task: Mapping[str, Any],  # Any: JSON, which the grader checks
        submissions: Sequence[str],
        *,
        extract: bool,
        deadline: float,
    ) -> AsyncGenerator[Numbered, None]:
        """Yield the verdict of each submission with its index, in the order in which they finish.

        With `extract` the submissions are completions, from which the code is extracted. Submissions
        without a verdict after `deadline` seconds are cancelled and masked. Closing the generator
        cancels those in progress. Raises ConfigurationError for a task that cannot be graded.
        """
        loop = asyncio.get_running_loop()
        end = loop.time() + deadline
        check_task(task)
        if prepared := getattr(self._grader, "prepared", None):
            task = await self._workers.run(client, _TASK, prepared, task)
        codes: Sequence[str | None] = submissions
        if extract:
            codes = await self._workers.run(client, _TEXTS, _extracted, submissions)
        pending = {
            asyncio.create_task(self._one(index, client, task, code))
            for index, code in enumerate(codes)
        }
        left = set(range(len(submissions)))
        try:
            while pending:
                done, pending = await asyncio.wait(
                    pending,
                    timeout=max(0.0, end - loop.time()),
                    return_when=asyncio.FIRST_COMPLETED,
                )
                if not done:
                    break
                for each in done:
                    index, verdict = each.result()
                    left.discard(index)
                    yield index, verdict
        finally:
            for each in pending:
                each.cancel()
            await asyncio.gather(*pending, return_exceptions=True)
        for index in sorted(left):
            detail = f"not graded within deadline={deadline:g} s"
            yield index, Verdict(Outcome.INFRA_ERROR, 0.0, "infra", detail)

    async def _one(
        self, index: int, client: str, task: Mapping[str, Any], code: str | None
    ) -> Numbered:
        if code is None:
            return index, Verdict(Outcome.FAILED, 0.0, "policy", "no code in the completion")
        async with self.room.place(client):
            return index, await self._grader.grade(self._session, code, task)


def _extracted(texts: Sequence[str]) -> list[str | None]:
    return [extract_code(text) for text in texts]


def _check_timeouts(body: RunRequest, deadline: float) -> None:
    """Raise ConfigurationError for an unknown language, and for a timeout not below `deadline`."""
    timeouts = {"timeout": body.timeout}
    if language_of(body.language).compile:
        timeouts["compile_timeout"] = body.compile_timeout
    for name, seconds in timeouts.items():
        if seconds >= deadline:
            raise ConfigurationError(
                f"{name}={seconds:g} is not below the service's deadline of {deadline:g} s"
            )


async def _run(session: Session, body: RunRequest, limits: Limits) -> RunResult | Verdict:
    """Run a program within `limits`; return the Verdict INFRA_ERROR if the infrastructure failed.

    Raises ConfigurationError if sandboxes lack the language's compiler or run time.
    """
    stdin = body.stdin.encode()
    if language_of(body.language).name == _PYTHON:
        ended = await run_program(session, body.code, stdin=stdin, files=body.files, limits=limits)
        if isinstance(ended, Verdict) and ended.outcome is Outcome.INFRA_ERROR:
            return ended
        return RunResult.of(ended)
    compiling = dataclasses.replace(limits, timeout=body.compile_timeout, wall=body.compile_timeout)
    given = ProgramInput(stdin, files=body.files)
    run = await run_source(session, body.language, body.code, given, limits, compiling)
    if run.verdict is not None and run.verdict.outcome is Outcome.INFRA_ERROR:
        return run.verdict
    return _result(run).model_copy(update={"compiler": _compiler(run)})


def _result(run: SourceRun) -> RunResult:
    result, verdict = run.result, run.verdict
    if verdict is None or (verdict.outcome is Outcome.RUNTIME_ERROR and result is not None):
        assert result is not None
        return RunResult.of(result)
    if verdict.outcome is Outcome.RUNTIME_ERROR:  # ended by SIGKILL, in another sandbox as well
        return RunResult(outcome="killed", returncode=None, detail=verdict.detail)
    return RunResult.of(verdict)


def _compiler(run: SourceRun) -> CompilerResult | None:
    result, exceeded = run.compiler, run.compiler_exceeded
    if result is not None:
        return CompilerResult(
            returncode=result.returncode,
            stdout=result.stdout,
            stderr=result.stderr,
            seconds=result.duration,
        )
    if exceeded is None or run.verdict is None:
        return None
    return CompilerResult(timed_out=exceeded is Outcome.TIMEOUT, stderr=run.verdict.detail)

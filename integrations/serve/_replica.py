"""One replica: its sessions, its limits, and the jobs that requests start."""

import asyncio
import contextlib
import dataclasses
import functools
import time
from collections.abc import AsyncGenerator, Callable
from typing import Any, TypeVar

from pydantic import BaseModel

from sandboxkit import SandboxError, Session
from sandboxkit.integrations.rewards import Limits, Outcome, Verdict, grading_session
from sandboxkit.integrations.serve import _allowance, _source
from sandboxkit.integrations.serve._admission import Admission
from sandboxkit.integrations.serve._bodies import read_label
from sandboxkit.integrations.serve._config import ServiceConfig
from sandboxkit.integrations.serve._grading import GradingQueue
from sandboxkit.integrations.serve._job import Job, Jobs
from sandboxkit.integrations.serve._metrics import ServiceMetrics
from sandboxkit.integrations.serve._models import (
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

Ran = RunResult | str
"""A program's result, or the reason why there is none."""


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
        _source.check(body, self._config.deadline)
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
            memory_mb=body.memory_mb or limits.memory_mb,
            # At least the grader's: so both use the same sandboxes.
            deadline=max(limits.deadline, self._config.deadline),
        )
        result: RunResult | Verdict
        try:
            async with asyncio.timeout(self._config.deadline):  # includes the time in the queue
                async with self._grading.room.place(client.name):
                    result = await _source.ran(self._session, body, limits)
        except TimeoutError:
            detail = f"not run within deadline={self._config.deadline:g} s"
            result = Verdict(Outcome.INFRA_ERROR, 0.0, "infra", detail)
        if isinstance(result, Verdict):
            self.metrics.outcomes.labels(client.name, result.outcome.value).inc()
            yield result.detail
            return
        self.metrics.outcomes.labels(client.name, result.outcome).inc()
        yield result

"""Grades completions: extracts the code of each and grades it, in a session that this module opens."""

import asyncio
import logging
import os
import pickle
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, get_args

from sandboxkit import ConfigurationError, Operation, Session
from sandboxkit.integrations._outages import require_working
from sandboxkit.integrations._service import DeadlineError, service_time, within
from sandboxkit.integrations._training.clock import Part, StageTimes, Timer
from sandboxkit.integrations._training.gradings import (
    NO_CODE,
    GradedSample,
    SharedGradings,
    verdict_by,
)
from sandboxkit.integrations.rewards import (
    Grader,
    Limits,
    Outcome,
    Verdict,
    banned_patterns,
    extract_code,
    grading_session,
)
from sandboxkit.integrations.rewards.doctor import CheckTasks, check_beforehand, line_about
from sandboxkit.provider import Provider

_LOG = logging.getLogger(__name__)
_PER_SANDBOX = 2
"""Number of completions graded at a time, per sandbox of the pool."""


class _Opened:
    """The session of one process, with its lock and semaphore; a forked child opens its own session."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.lock = asyncio.Lock()
        self.session: Session | None = None
        self.room = asyncio.Semaphore()


class CompletionGrader:
    """Grades completions concurrently, in a session that each process opens at its first call.

    A completion without code, or with a name of its task's `banned_patterns`, gets the reward 0.
    Equal completions of equal tasks in one call are graded once and share the result. An infrastructure
    failure counts only for the completion that was graded; the next equal one is then graded again.

    A sample fails after `deadline` seconds in which no sandbox of the session started or ended, so
    slow completions delay others but do not fail them. `deadline` is also an upper limit for the
    grader's `limits.deadline`.

    The first call of a process starts a sandbox, logs an upper bound for the time of its batch, and
    checks its tasks that have a reference solution; `check_tasks` is "warn", "raise" or "off". The
    object can be pickled if its grader and `extract` can. `name` appears in errors.
    """

    def __init__(
        self,
        grader: Grader,
        *,
        name: str,
        extract: Callable[[str], str | None] | None = None,
        deadline: float = 600.0,
        check_tasks: CheckTasks = "warn",
        provider: str | Provider | None = None,
        max_concurrency: int | None = None,
        pool: int | None = None,
        **options: Any,  # SandboxSpec's, as Session takes them
    ) -> None:
        if isinstance(grader, type) or not callable(getattr(grader, "grade", None)):
            given = f"the class {grader.__name__}" if isinstance(grader, type) else repr(grader)
            example = f"{grader.__name__}()" if isinstance(grader, type) else "HostCompare()"
            raise ConfigurationError(
                f"grader={given} is no grader: give an object such as {example}, or one of your own with "
                "'async def grade(self, session, submission, task)', which returns a Verdict"
            )
        Session.require_provider(provider)
        if deadline <= 0:
            raise ConfigurationError(f"deadline={deadline!r}: give seconds above 0")
        if check_tasks not in get_args(CheckTasks):
            raise ConfigurationError(
                f"check_tasks={check_tasks!r}: give one of {', '.join(get_args(CheckTasks))}"
            )
        self.name = name
        self._grader = within(grader, deadline)
        own: Callable[[str], str | None] = getattr(grader, "extract", extract_code)
        self._extract = extract or own
        self._deadline = deadline
        self._check_tasks: CheckTasks = check_tasks
        self._options = {
            "provider": provider,
            "max_concurrency": max_concurrency,
            "pool": pool,
            **options,
        }
        self._opened = _Opened()

    def grade(
        self, texts: Sequence[str], tasks: Sequence[Mapping[str, Any]]
    ) -> Operation[list[GradedSample]]:
        """Grade the completions `texts`, each for its task; return the results in the same order.

        Raises the provider's error if no sandbox can be started in this process's first call, and
        ConfigurationError for a task that the grader refuses.
        """
        return Operation(self._grade_all(texts, tasks))

    def close(self) -> None:
        """Close the session; the next call opens a new one. Also happens at the interpreter's exit."""
        opened, self._opened = self._opened, _Opened()
        if opened.session is not None and opened.pid == os.getpid():
            opened.session.close().result()

    async def _grade_all(
        self, texts: Sequence[str], tasks: Sequence[Mapping[str, Any]]
    ) -> list[GradedSample]:
        first = self._opened.session is None
        session, room = await self._ready(tasks)
        shared = SharedGradings(len(texts), self._deadline)
        try:
            graded = await asyncio.gather(
                *[
                    self._grade(session, room, shared, text, task)
                    for text, task in zip(texts, tasks, strict=True)
                ]
            )
        finally:
            await shared.aclose()
        if first and graded and all(each.verdict.detail == NO_CODE for each in graded):
            _LOG.warning(
                "no completion of the first batch has code in a fence or in <answer> tags: each gets the "
                "reward 0; let the prompt ask for one, or pass extract="
            )
        return graded

    async def _grade(
        self,
        session: Session,
        room: asyncio.Semaphore,
        shared: SharedGradings,
        text: str,
        task: Mapping[str, Any],
    ) -> GradedSample:
        code = self._extract(text)
        if code is None:
            return _refused(NO_CODE)
        banned = banned_patterns(code, task.get("banned_patterns") or ())
        if banned:
            where = ", ".join(f"{use.found!r} in line {use.line}" for use in banned[:3])
            return _refused(f"banned: {where}")

        async def judge(begins: Callable[[], None]) -> GradedSample:
            try:
                async with room, service_time(self._deadline, lambda: session.quiet):
                    begins()
                    return GradedSample(await verdict_by(self._grader, session, code, task))
            except DeadlineError:
                detail = f"not graded within deadline={self._deadline:g} s"
                return GradedSample(Verdict(Outcome.INFRA_ERROR, 0.0, "infra", detail))

        with Timer(StageTimes(), dict[Part, float]()) as timer:
            return await shared.get((text, repr(sorted(task.items()))), judge, timer)

    async def _ready(self, tasks: Sequence[Mapping[str, Any]]) -> tuple[Session, asyncio.Semaphore]:
        if self._opened.pid != os.getpid():
            self._opened = _Opened()
        opened = self._opened
        async with opened.lock:
            if opened.session is None:
                opened.session = await self._open(tasks)
                # Limit concurrency by the pool's size: otherwise the cases of all completions would
                # interleave, and all completions would finish only at the end.
                opened.room = asyncio.Semaphore(_PER_SANDBOX * opened.session.pool or sys.maxsize)
            return opened.session, opened.room

    async def _open(self, tasks: Sequence[Mapping[str, Any]]) -> Session:
        session = grading_session(self._grader, **self._options)
        try:
            await require_working(session, self._deadline)
            limits = getattr(self._grader, "limits", None)
            if isinstance(limits, Limits) and session.pool:
                _LOG.info(
                    "a batch of %d completions takes %.0f s at most, even if all of them sleep",
                    len(tasks),
                    limits.longest_batch(len(tasks), session.pool),
                )
            checked = await check_beforehand(session, self._grader, tasks, self._check_tasks)
            if checked:
                fine = all(report.status == "fine" for report in checked)
                _LOG.log(logging.INFO if fine else logging.WARNING, line_about(checked))
        except BaseException:
            await session.close()
            raise
        return session

    def __getstate__(self) -> dict[str, Any]:
        state = {name: value for name, value in self.__dict__.items() if name != "_opened"}
        for name, value in state.items():
            try:
                pickle.dumps(value)
            except (pickle.PicklingError, AttributeError, TypeError) as error:
                raise ConfigurationError(
                    f"{self.name} cannot be pickled, because of its {name.lstrip('_')} "
                    f"{value!r}: use classes and functions of a module ({error})"
                ) from error
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _opened=_Opened())


def _refused(detail: str) -> GradedSample:
    return GradedSample(Verdict(Outcome.FAILED, 0.0, "policy", detail), graded=False)

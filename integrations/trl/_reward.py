"""Reward functions for `reward_funcs`: completions graded in sandboxes, a batch at a time."""

import asyncio
import dataclasses
import inspect
import os
import pickle
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from sandboxkit import ConfigurationError, Operation, Session
from sandboxkit.integrations._outages import require_working
from sandboxkit.integrations.grpo.clock import Clock, Part, Timer
from sandboxkit.integrations.rewards import (
    Grader,
    Outcome,
    Verdict,
    banned_patterns,
    extract_code,
    grading_session,
)
from sandboxkit.integrations.trl._batch import (
    LogExtra,
    LogMetric,
    Sample,
    log,
    refuse_broken,
    rows,
    text_of,
)
from sandboxkit.integrations.trl._records import Records
from sandboxkit.provider import Provider

__all__ = ["CombinedReward", "SandboxReward"]

Rewards = list[float | None]
RewardFunction = Callable[..., Any]
"""Any, as TRL has it: a list of numbers and None, or a coroutine of one."""
_BEGUN = 2
"""Completions that are being graded at a time, for each sandbox."""


class SandboxReward:
    """Grades the code in each completion, all of a batch at once, in a session of its own.

        GRPOTrainer(reward_funcs=SandboxReward(HostCompare(), provider="docker"), ...)

    The data set's columns are the grader's task; a column `banned_patterns`, a list of names,
    refuses a completion that uses one. Equal completions of equal rows are graded once, and again
    where the infrastructure failed, which then counts for one of them. A completion without code,
    or with a banned name, has the reward 0.

    A failure of the infrastructure is None, which TRL (1.16) leaves out of the group's baseline
    and gives the advantage 0, provided that every reward function says None: use
    `CombinedReward` to have several. Such failures are counted among the samples that needed a
    sandbox: not those without code or with a banned name. A batch raises ProviderUnavailableError where their share is `max_infra_failed_rate` or more (0:
    at the first failure; 1: only where all failed), or where all of one prompt's failed, of two
    at least. `deadline` bounds one sample with all its waiting and retries, in seconds; past it
    the sample has failed so, too. A process's first call starts a sandbox before anything
    else, and raises what the provider raises if it cannot. `pool` is how many sandboxes serve all
    completions in turn, and with which defaults, see `grading_session`; 0: each run has a fresh one.

    Logged: the metrics `infra_failed_rate` as counted above, `outcome/...` and `trust/shared`, the
    share of graded samples whose verdict's trust is "shared"; the columns `outcome` and `detail`.
    Of the times in which `rollout/PART_seconds_p50` and `_p99` are logged, and each sample's in the
    columns `PART_seconds`, `queue` is that for its turn and `grading` the rest. `records` is a folder
    for all rollouts, which `sandboxkit grpo show FOLDER` reads; those of a pass over the evaluation
    set are there until the next step's take their place.
    It can be pickled if its grader can; each process opens its own session.
    """

    def __init__(
        self,
        grader: Grader,
        *,
        name: str = "sandbox_reward",
        extract: Callable[[str], str | None] = extract_code,
        deadline: float = 600.0,
        max_infra_failed_rate: float = 0.5,
        records: str | Path | None = None,
        provider: str | Provider | None = None,
        max_concurrency: int | None = None,
        pool: int | None = None,
        **options: Any,  # SandboxSpec's, as Session takes them
    ) -> None:
        if deadline <= 0 or not 0 <= max_infra_failed_rate <= 1:
            raise ConfigurationError(
                f"deadline={deadline!r}, max_infra_failed_rate={max_infra_failed_rate!r}: "
                "give seconds above 0 and a share from 0 to 1"
            )
        self.__name__ = name  # what TRL logs it as
        self._grader = grader
        self._extract = extract
        self._deadline = deadline
        self._limit = max_infra_failed_rate
        self._records = Records(records)
        self._options = {
            "provider": provider,
            "max_concurrency": max_concurrency,
            "pool": pool,
            **options,
        }
        self._session: Session | None = None
        self._pid = 0

    def __call__(
        self,
        prompts: Sequence[Any],
        completions: Sequence[Any],
        *,
        log_metric: LogMetric | None = None,
        log_extra: LogExtra | None = None,
        **columns: Any,
    ) -> Rewards:
        """Rewards of a batch in its order, None where the infrastructure failed. Blocks."""
        return Operation(
            self.score(prompts, completions, log_metric=log_metric, log_extra=log_extra, **columns)
        ).result()

    async def score(
        self,
        prompts: Sequence[Any],
        completions: Sequence[Any],
        *,
        log_metric: LogMetric | None = None,
        log_extra: LogExtra | None = None,
        **columns: Any,
    ) -> Rewards:
        """The same as a coroutine: `reward_funcs=[reward.score]` runs beside other async ones."""
        tasks = rows(len(completions), columns)
        samples = await self._samples(await self._opened(), completions, tasks)
        rewards = [sample.verdict.reward for sample in samples]
        await asyncio.to_thread(
            self._records.write, prompts, completions, samples, rewards, columns
        )
        rate = refuse_broken(prompts, samples, self._limit, self.__name__)
        log(samples, rate, log_metric, log_extra)
        return rewards

    def close(self) -> None:
        """Stop what runs; the next call opens a new session. Also done at the interpreter's end."""
        if self._session is not None and self._pid == os.getpid():
            self._session.close().result()
        self._session = None

    async def _samples(
        self, session: Session, completions: Sequence[Any], tasks: Sequence[Mapping[str, Any]]
    ) -> list[Sample]:
        keys = [
            (text_of(completion), repr(sorted(task.items())))
            for completion, task in zip(completions, tasks, strict=True)
        ]
        twins: dict[tuple[str, str], list[int]] = {}
        for index, key in enumerate(keys):
            twins.setdefault(key, []).append(index)
        # Few at a time where sandboxes are few: the others would take turns with their cases, and
        # all be graded last.
        room = asyncio.Semaphore(_BEGUN * session.pool or len(keys))
        graded = await asyncio.gather(
            *[
                self._grade_twins(session, room, text, tasks[same[0]], len(same))
                for (text, _), same in twins.items()
            ]
        )
        known: dict[int, Sample] = {}
        for same, samples in zip(twins.values(), graded, strict=True):
            known |= zip(same, samples, strict=True)
        return [known[index] for index in range(len(keys))]

    async def _grade_twins(
        self,
        session: Session,
        room: asyncio.Semaphore,
        text: str,
        task: Mapping[str, Any],
        count: int,
    ) -> list[Sample]:
        """Those of `count` equal completions: one for all, unless the infrastructure fails.

        A failure is of one of them alone, and the next one is graded again. Together they may be
        most of a group, whose baseline would be that of the others.
        """
        begun, samples = time.monotonic(), [await self._grade(session, room, text, task)]
        while samples[-1].failed and len(samples) < count:
            if time.monotonic() - begun > self._deadline:
                break
            samples.append(await self._grade(session, room, text, task))
        equal = dataclasses.replace(samples[-1], remembered=True)
        return samples + [equal] * (count - len(samples))

    async def _grade(
        self, session: Session, room: asyncio.Semaphore, text: str, task: Mapping[str, Any]
    ) -> Sample:
        code = self._extract(text)
        if code is None:
            return _refused("no code in the completion")
        banned = banned_patterns(code, task.get("banned_patterns") or ())
        if banned:
            where = ", ".join(f"{use.found!r} in line {use.line}" for use in banned[:3])
            return _refused(f"banned: {where}")
        with Timer(Clock(), seconds := dict[Part, float]()) as timer:
            timer.enter("queue")
            try:
                async with asyncio.timeout(self._deadline), room:
                    timer.enter("grading")
                    verdict = await self._grader.grade(session, code, task)
            except TimeoutError:
                detail = f"not graded within deadline={self._deadline:g} s"
                verdict = Verdict(Outcome.INFRA_ERROR, 0.0, "infra", detail)
        return Sample(verdict, seconds=seconds)

    async def _opened(self) -> Session:
        if self._session is None or self._pid != os.getpid():
            session = self._session = grading_session(self._grader, **self._options)
            self._pid = os.getpid()
            try:
                await require_working(session, self._deadline)
            except BaseException:
                self._session = None
                await session.close()
                raise
            return session
        return self._session

    def __getstate__(self) -> dict[str, Any]:
        state = {**self.__dict__, "_session": None, "_pid": 0}
        for name, value in state.items():
            try:
                pickle.dumps(value)
            except (pickle.PicklingError, AttributeError, TypeError) as error:
                raise ConfigurationError(
                    f"{self.__name__} cannot be pickled, because of its {name.lstrip('_')} "
                    f"{value!r}: use classes and functions of a module ({error})"
                ) from error
        return state


def _refused(detail: str) -> Sample:
    return Sample(Verdict(Outcome.FAILED, 0.0, "policy", detail), graded=False)


class CombinedReward:
    """Several reward functions as one: their weighted sum, None where any of them is None.

    TRL adds up what it gets and takes a None among numbers for 0. For a sample that one function
    could not score for reasons of ours that would be a false reward; so these are added up here.
    Each function's mean is logged as `reward/NAME`. Functions may be async; all run at once.
    """

    def __init__(
        self,
        functions: Sequence[RewardFunction],
        *,
        weights: Sequence[float] | None = None,
        name: str = "combined_reward",
    ) -> None:
        self._functions = tuple(functions)
        self._weights = tuple([1.0] * len(self._functions) if weights is None else weights)
        if not self._functions or len(self._weights) != len(self._functions):
            raise ConfigurationError(
                f"{len(self._functions)} reward functions and {len(self._weights)} weights: "
                "give a function at least, and a weight for each"
            )
        self.__name__ = name

    def __call__(
        self, prompts: Sequence[Any], completions: Sequence[Any], **kwargs: Any
    ) -> Rewards:
        """Weighted sums in the batch's order. Blocks."""
        return Operation(self.score(prompts, completions, **kwargs)).result()

    async def score(
        self, prompts: Sequence[Any], completions: Sequence[Any], **kwargs: Any
    ) -> Rewards:
        """The same as a coroutine."""

        async def one(function: RewardFunction) -> Rewards:
            call = getattr(function, "score", function)
            if not (inspect.iscoroutinefunction(call)):
                return list(
                    await asyncio.to_thread(
                        call, prompts=prompts, completions=completions, **kwargs
                    )
                )
            return list(await call(prompts=prompts, completions=completions, **kwargs))

        columns = await asyncio.gather(*[one(function) for function in self._functions])
        log_metric = kwargs.get("log_metric")
        for function, column in zip(self._functions, columns, strict=True):
            name = getattr(function, "__name__", type(function).__name__)
            if len(column) != len(completions):
                raise ConfigurationError(
                    f"reward function {name!r} returned {len(column)} rewards for "
                    f"{len(completions)} completions"
                )
            known = [value for value in column if value is not None]
            if log_metric is not None and known:
                log_metric(f"reward/{name}", sum(known) / len(known))
        return [self._sum(row) for row in zip(*columns, strict=True)]

    def _sum(self, row: Sequence[float | None]) -> float | None:
        total = 0.0
        for value, weight in zip(row, self._weights, strict=True):
            if value is None:
                return None
            total += weight * value
        return total

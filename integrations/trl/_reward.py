"""Reward functions for TRL's `reward_funcs` that grade a batch of completions in sandboxes."""

import asyncio
import functools
import inspect
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from sandboxkit import ConfigurationError, Operation
from sandboxkit.integrations._training.completions import CompletionGrader
from sandboxkit.integrations.rewards import Grader
from sandboxkit.integrations.rewards.doctor import CheckTasks
from sandboxkit.integrations.trl._batch import (
    LogExtra,
    LogMetric,
    log,
    refuse_broken,
    rows,
    text_of,
)
from sandboxkit.integrations.trl._records import Records
from sandboxkit.provider import Provider

Rewards = list[float | None]
RewardFunction = Callable[..., Any]
"""Any, as in TRL: returns a list of numbers and None, or a coroutine of such a list."""


class SandboxReward:
    """Grades the code in the completions of a batch concurrently, in its own session.

        GRPOTrainer(reward_funcs=SandboxReward(HostCompare(), provider="docker"), ...)

    A row's columns are the grader's task. The column `banned_patterns` is a list of names that a
    completion must not use. A completion without code, or with a banned name, gets the reward 0.
    Equal completions of equal rows are graded once and share the result. An infrastructure failure
    counts only for the completion that was graded; the next equal one is then graded again.

    After an infrastructure failure the reward is None. TRL (1.16) leaves such a sample out of the
    group's baseline and gives it the advantage 0, if every reward function returns None for it: use
    `CombinedReward` for several. The failure rate is failures / samples that needed a sandbox;
    completions without code or with a banned name do not count. A batch raises
    ProviderUnavailableError if the rate is `max_infra_failed_rate` or more (0: at the first failure; 1:
    only if all failed), or if a prompt has two samples or more and all of them failed.

    A sample fails after `deadline` seconds in which no sandbox of the session started or ended, so
    slow completions delay others but do not fail them. `deadline` is also an upper limit for the
    grader's `limits.deadline`; `limits.longest_batch` computes how long a batch can take. A
    process's first call starts a sandbox first, and raises the provider's error if that fails.
    `pool` is the number of sandboxes that grade all completions, with the defaults of
    `grading_session`; with 0 each run gets a fresh sandbox.

    Before the first batch of a process, up to 8 of its rows with a reference solution (in
    `reference`, `canonical_solution` or `code`) are checked for at most 60 s: does the grader
    accept the reference, and does it accept cheats? `check_tasks`: "warn" logs a line, "raise"
    raises ConfigurationError if a task accepts a cheat or refuses its reference, "off" skips the check.

    Logged metrics: `infra_failed_rate`; `no_code`, the share of completions without code; `outcome/...`; `trust/shared`, the share of graded samples
    with that trust; and `rollout/PART_seconds_p50` and `_p99`, where PART is `queue` (waiting to be
    graded) or `grading`. Logged columns: `outcome`, `detail` and `PART_seconds`. `records` is a
    folder for all rollouts, to be read by `sandboxkit grpo show FOLDER`; rollouts of an evaluation
    pass are overwritten by the next training step. The object can be pickled if its grader can;
    each process opens its own session.
    """

    def __init__(
        self,
        grader: Grader,
        *,
        name: str = "sandbox_reward",
        extract: Callable[[str], str | None] | None = None,
        deadline: float = 600.0,
        max_infra_failed_rate: float = 0.5,
        records: str | Path | None = None,
        check_tasks: CheckTasks = "warn",
        provider: str | Provider | None = None,
        max_concurrency: int | None = None,
        pool: int | None = None,
        **options: Any,  # SandboxSpec's, as Session takes them
    ) -> None:
        if not 0 <= max_infra_failed_rate <= 1:
            raise ConfigurationError(
                f"max_infra_failed_rate={max_infra_failed_rate!r}: give a share from 0 to 1"
            )
        self.__name__ = name  # what TRL logs it as
        self._completions = CompletionGrader(
            grader,
            name=name,
            extract=extract,
            deadline=deadline,
            check_tasks=check_tasks,
            provider=provider,
            max_concurrency=max_concurrency,
            pool=pool,
            **options,
        )
        self._limit = max_infra_failed_rate
        self._records = Records(records)

    def __call__(
        self,
        prompts: Sequence[Any],
        completions: Sequence[Any],
        *,
        log_metric: LogMetric | None = None,
        log_extra: LogExtra | None = None,
        **columns: Any,
    ) -> Rewards:
        """Grade a batch and return its rewards in order; None after an infrastructure failure. Blocks.

        Raises ProviderUnavailableError for too many failures, and ConfigurationError for a bad task.
        """
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
        """Like calling the object, but as a coroutine.

        TRL runs `reward_funcs=[reward.score]` concurrently with other coroutines.
        """
        tasks = rows(len(completions), columns)
        samples = await self._completions.grade([text_of(each) for each in completions], tasks)
        rewards = [sample.verdict.reward for sample in samples]
        await asyncio.to_thread(
            self._records.write, prompts, completions, samples, rewards, columns
        )
        rate = refuse_broken(prompts, samples, self._limit, self.__name__)
        log(samples, rate, log_metric, log_extra)
        return rewards

    def close(self) -> None:
        """Close the session; the next call opens a new one. Also happens at the interpreter's exit."""
        self._completions.close()


class CombinedReward:
    """Combines reward functions into their weighted sum, which is None if any of them is None.

    TRL's own sum counts a None next to numbers as 0, which would be a wrong reward for a sample
    that one function could not score. Each function's mean is logged as `reward/NAME`. Functions
    may be async; all run concurrently. Raises ConfigurationError for a wrong number of weights or
    rewards.
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
                "give at least one function, and one weight for each"
            )
        self.__name__ = name

    def __call__(
        self, prompts: Sequence[Any], completions: Sequence[Any], **kwargs: Any
    ) -> Rewards:
        """Call all functions and return the weighted sums in the batch's order. Blocks.

        Raises ConfigurationError if a function returns a wrong number of rewards, and their own errors.
        """
        return Operation(self.score(prompts, completions, **kwargs)).result()

    async def score(
        self, prompts: Sequence[Any], completions: Sequence[Any], **kwargs: Any
    ) -> Rewards:
        """Like calling the object, but as a coroutine."""

        async def one(function: RewardFunction) -> Rewards:
            call = getattr(function, "score", function)
            work = functools.partial(call, prompts=prompts, completions=completions, **kwargs)
            is_async = inspect.iscoroutinefunction(call)
            return list(await (work() if is_async else asyncio.to_thread(work)))

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

"""The reward function for environments: grades all rollouts of a batch concurrently, and logs them."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sandboxkit import ConfigurationError, Operation
from sandboxkit.integrations._service import DeadlineError, service_time
from sandboxkit.integrations._training.gradings import GradedSample
from sandboxkit.integrations.rewards import Outcome, Verdict
from sandboxkit.integrations.trl._batch import LogExtra, LogMetric, log, refuse_broken
from sandboxkit.integrations.trl._records import Records
from sandboxkit.integrations.trl._rollout import RolloutEnvironment


class EnvironmentReward:
    """Grades the rollouts of `SandboxEnvironments`, `SweEnvironments` and `SandboxRollouts`.

    Infrastructure failures, metrics and `records` work as in `SandboxReward`: a failure is None, and a
    batch raises ProviderUnavailableError if the failed share is `max_infra_failed_rate` or more, or
    if all rollouts of a prompt failed. Every rollout counts as needing a sandbox. A rollout also
    fails after `deadline` seconds in which no sandbox of the session started or ended.

    Logged times: `start` is the wait for the rollout's sandbox, including the session's queue, and
    `tools` the time of its tool calls. `sampling` is known only with `SandboxRollouts`: it is the time
    of the batched generations in which the rollout took part.

    AsyncGRPOTrainer calls a pickled copy without environments. There each environment has `get_reward`, which
    TRL counts, and this function returns None for every completion; it logs and records nothing.
    """

    def __init__(
        self,
        *,
        name: str = "environment_reward",
        deadline: float = 600.0,
        max_infra_failed_rate: float = 0.5,
        records: str | Path | None = None,
    ) -> None:
        if deadline <= 0 or not 0 <= max_infra_failed_rate <= 1:
            raise ConfigurationError(
                f"deadline={deadline!r}, max_infra_failed_rate={max_infra_failed_rate!r}: "
                "give seconds above 0 and a share from 0 to 1"
            )
        self.__name__ = name  # what TRL logs it as
        self._deadline = deadline
        self._limit = max_infra_failed_rate
        self._records = Records(records)
        self._is_copy = False

    def __call__(
        self,
        prompts: Sequence[Any],
        completions: Sequence[Any],
        *,
        environments: Sequence[RolloutEnvironment] = (),
        log_metric: LogMetric | None = None,
        log_extra: LogExtra | None = None,
        **columns: Any,
    ) -> list[float | None]:
        """Grade a batch and return its rewards in order; None after an infrastructure failure. Blocks.

        Raises ProviderUnavailableError for too many failures, and ConfigurationError without environments.
        """
        if self._is_copy and not environments:
            return [None] * len(completions)
        if len(environments) != len(completions):
            raise ConfigurationError(
                f"{len(completions)} completions and {len(environments)} environments: "
                "EnvironmentReward needs environment_factory= or rollout_func= of the trainer"
            )
        if hasattr(environments[0], "get_reward"):
            raise ConfigurationError(
                "these environments have get_reward=True, so their reward would count twice: "
                "remove get_reward=True or EnvironmentReward"
            )
        graded = Operation(self._all(environments)).result()
        traces = [each._trace for each in environments]
        samples = [
            GradedSample(verdict, seconds=trace.seconds)
            for (verdict, _), trace in zip(graded, traces, strict=True)
        ]
        rewards = [reward for _, reward in graded]
        self._records.write(prompts, completions, samples, rewards, columns, traces)
        rate = refuse_broken(prompts, samples, self._limit, self.__name__)
        log(samples, rate, log_metric, log_extra)
        return rewards

    # Any: the attributes.
    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _is_copy=True)

    async def _all(
        self, environments: Sequence[RolloutEnvironment]
    ) -> list[tuple[Verdict, float | None]]:
        return await asyncio.gather(*[self._one(each) for each in environments])

    async def _one(self, environment: RolloutEnvironment) -> tuple[Verdict, float | None]:
        try:
            async with service_time(self._deadline, lambda: environment._session.quiet):
                return await environment._grade()
        except DeadlineError:
            detail = f"not graded within deadline={self._deadline:g} s"
            return Verdict(Outcome.INFRA_ERROR, 0.0, "infra", detail), None

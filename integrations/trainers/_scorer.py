"""Scores samples for trainers, and applies the chosen policy to infrastructure failures."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import Any, Literal, get_args

from sandboxkit import ConfigurationError, Operation, ProviderUnavailableError, SandboxError
from sandboxkit.integrations._retries import pauses
from sandboxkit.integrations._training.completions import CompletionGrader
from sandboxkit.integrations._training.gradings import GradedSample
from sandboxkit.integrations._training.tasks import task_of
from sandboxkit.integrations.rewards import Grader, Outcome, Verdict

OnInfra = Literal["raise", "retry", "mask"]
"""The policy for a sample that failed in the infrastructure. Its reward never becomes 0."""


class SampleScorer:
    """Grades samples for one trainer, with an explicit policy for infrastructure failures.

    `on_infra` is the policy. "raise" raises ProviderUnavailableError, which stops the training.
    "retry" grades the sample again, with growing pauses, for up to `retry_seconds`, and then raises.
    "mask" returns a verdict whose reward is None, and raises after `max_masked` failures without a
    graded sample in between, since the backend is then down. `no_mask` is the reason why a trainer
    cannot mask samples; with it, "mask" raises ConfigurationError.

    If the first sandbox cannot be started, "mask" raises, too. The other options are those of
    `CompletionGrader`.
    """

    def __init__(
        self,
        grader: Grader,
        *,
        trainer: str,
        no_mask: str | None = None,
        on_infra: OnInfra = "raise",
        retry_seconds: float = 1800.0,
        max_masked: int = 64,
        **options: Any,  # CompletionGrader's, and SandboxSpec's
    ) -> None:
        if on_infra not in get_args(OnInfra):
            raise ConfigurationError(
                f"on_infra={on_infra!r}: give one of {', '.join(get_args(OnInfra))}"
            )
        if on_infra == "mask" and no_mask is not None:
            raise ConfigurationError(
                f"on_infra='mask': {trainer} cannot leave a sample out, because {no_mask}; give "
                "'raise' or 'retry'"
            )
        if retry_seconds <= 0 or max_masked < 1:
            raise ConfigurationError(
                f"retry_seconds={retry_seconds!r}, max_masked={max_masked!r}: give seconds above 0 "
                "and a number of samples from 1"
            )
        self.on_infra: OnInfra = on_infra
        self._trainer = trainer
        self._retry_seconds = retry_seconds
        self._max_masked = max_masked
        self._masked = 0
        self._completions = CompletionGrader(grader, name=trainer, **options)

    # Any: trainers pass ground truths of their users' data sets.
    def score(self, texts: Sequence[str], truths: Sequence[Any]) -> Operation[list[Verdict]]:
        """Grade the texts and return their verdicts in order; `truths` are their tasks, see `task_of`.

        Only the policy "mask" returns verdicts without a reward. Raises ProviderUnavailableError
        according to the policy, and ConfigurationError for a task that cannot be read or graded.
        """
        tasks = [task_of(truth) for truth in truths]
        return Operation(self._score(texts, tasks))

    def close(self) -> None:
        """Close the session; the next call opens a new one. Also happens at the interpreter's exit."""
        self._completions.close()

    async def _score(
        self, texts: Sequence[str], tasks: Sequence[Mapping[str, Any]]
    ) -> list[Verdict]:
        samples = await self._grade(texts, tasks)
        end = time.monotonic() + self._retry_seconds
        for pause in pauses(first=1.0):
            failed = [number for number, sample in enumerate(samples) if sample.failed]
            if not failed or self.on_infra != "retry" or time.monotonic() + pause > end:
                break
            await asyncio.sleep(pause)
            again = await self._grade([texts[n] for n in failed], [tasks[n] for n in failed])
            for number, sample in zip(failed, again, strict=True):
                samples[number] = sample
        self._check(samples)
        return [sample.verdict for sample in samples]

    async def _grade(
        self, texts: Sequence[str], tasks: Sequence[Mapping[str, Any]]
    ) -> list[GradedSample]:
        try:
            return await self._completions.grade(texts, tasks)
        except SandboxError as error:  # the first sandbox could not be started
            if self.on_infra != "retry" or not error.retryable:
                raise
            lost = Verdict(Outcome.INFRA_ERROR, 0.0, "infra", str(error))
            return [GradedSample(lost) for _ in texts]

    def _check(self, samples: Sequence[GradedSample]) -> None:
        failed = [sample.verdict.detail for sample in samples if sample.failed]
        if failed and self.on_infra != "mask":
            raise ProviderUnavailableError(
                f"{self._trainer}: {len(failed)} of {len(samples)} samples failed in the "
                f"infrastructure, with on_infra={self.on_infra!r}; the first: {failed[0]}"
            )
        for sample in samples:
            if sample.needed_sandbox:
                self._masked = self._masked + 1 if sample.failed else 0
        if self._masked >= self._max_masked:
            raise ProviderUnavailableError(
                f"{self._trainer}: the last {self._masked} samples that needed a sandbox failed in "
                f"the infrastructure, with max_masked={self._max_masked}; the last: {failed[-1]}"
            )

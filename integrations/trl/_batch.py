"""Batches of TRL's reward functions: their data set rows, failure rates and logged metrics."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sandboxkit import ProviderUnavailableError
from sandboxkit.integrations._outages import is_outage
from sandboxkit.integrations._training.clock import PARTS, percentiles
from sandboxkit.integrations._training.curves import part_curves
from sandboxkit.integrations._training.gradings import NO_CODE, GradedSample
from sandboxkit.integrations.rewards import Outcome

LogMetric = Callable[[str, float], None]
LogExtra = Callable[[str, list[Any]], None]

# Arguments that TRL adds to the columns of the data set.
_OF_TRL = frozenset({"completion_ids", "environments", "log_extra", "log_metric", "trainer_state"})


def rows(count: int, columns: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the data set's row for each of the `count` completions, from TRL's `columns`."""
    own = {name: values for name, values in columns.items() if name not in _OF_TRL}
    return [{name: values[index] for name, values in own.items()} for index in range(count)]


def text_of(completion: Any) -> str:
    """Return a completion's text. If it is a list of messages, join those of the assistant."""
    if isinstance(completion, str):
        return completion
    texts = [m.get("content") for m in completion if m.get("role", "assistant") == "assistant"]
    return "\n".join(part for part in texts if isinstance(part, str))


def refuse_broken(
    prompts: Sequence[Any], samples: Sequence[GradedSample], limit: float, what: str
) -> float:
    """Return the share of infrastructure failures among the samples that needed a sandbox.

    `what` begins the error's text. Raises ProviderUnavailableError if the share is above 0 and at least
    `limit`, or if a prompt has two samples or more and all of them failed: training would silently
    skip that prompt.
    """
    groups: dict[str, list[GradedSample]] = {}
    for prompt, sample in zip(prompts, samples, strict=True):
        if sample.needed_sandbox:
            groups.setdefault(repr(prompt), []).append(sample)
    needed = [sample for members in groups.values() for sample in members]
    failed = [sample for sample in samples if sample.failed]
    if is_outage(len(failed), len(needed), limit):
        raise ProviderUnavailableError(
            f"{what}: {len(failed)} of {len(needed)} samples that needed a sandbox, of "
            f"{len(samples)} in all, failed in the infrastructure, with "
            f"max_infra_failed_rate={limit:g}; the first: {failed[0].verdict.detail}"
        )
    for prompt, members in groups.items():
        if len(members) > 1 and all(sample.failed for sample in members):
            raise ProviderUnavailableError(
                f"{what}: all {len(members)} completions of the prompt {prompt[:60]} that needed "
                f"a sandbox failed in the infrastructure; the first: {members[0].verdict.detail}"
            )
    return len(failed) / max(len(needed), 1)


def log(
    samples: Sequence[GradedSample],
    rate: float,
    log_metric: LogMetric | None,
    log_extra: LogExtra | None,
) -> None:
    """Log shares of outcomes and percentiles of times as metrics, and both per sample as table columns.

    `rate` is the share of infrastructure failures. A callback that is None gets nothing.
    """
    if log_metric is not None:
        log_metric("infra_failed_rate", rate)
        without = sum(sample.verdict.detail == NO_CODE for sample in samples)
        log_metric("no_code", without / max(len(samples), 1))
        counts = Counter(sample.verdict.outcome for sample in samples)
        for outcome in Outcome:
            log_metric(f"outcome/{outcome}", counts[outcome] / max(len(samples), 1))
        graded = [sample.verdict for sample in samples if sample.graded and not sample.failed]
        if graded:
            shared = sum(verdict.trust == "shared" for verdict in graded)
            log_metric("trust/shared", shared / len(graded))
        for name, value in part_curves([sample.verdict for sample in samples]).items():
            log_metric(name, value)
        own = [sample.seconds for sample in samples if not sample.remembered]
        for part in PARTS:
            spent = [seconds[part] for seconds in own if part in seconds]
            if spent:
                for name, value in percentiles(f"rollout/{part}_seconds", spent).items():
                    log_metric(name, value)
    if log_extra is not None:
        log_extra("outcome", [str(sample.verdict.outcome) for sample in samples])
        log_extra("detail", [sample.verdict.detail for sample in samples])
        for part in PARTS:
            if any(part in sample.seconds for sample in samples):
                log_extra(f"{part}_seconds", [sample.seconds.get(part) for sample in samples])

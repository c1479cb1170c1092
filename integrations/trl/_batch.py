"""What TRL passes to a reward function, row by row, and what it is told afterwards."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from sandboxkit import ProviderUnavailableError
from sandboxkit.integrations.rewards import Outcome, Verdict

LogMetric = Callable[[str, float], None]
LogExtra = Callable[[str, list[Any]], None]

# What TRL adds to the data set's own columns.
_OF_TRL = frozenset({"completion_ids", "environments", "log_extra", "log_metric", "trainer_state"})


def rows(count: int, columns: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The data set's row of each completion."""
    own = {name: values for name, values in columns.items() if name not in _OF_TRL}
    return [{name: values[index] for name, values in own.items()} for index in range(count)]


def text_of(completion: Any) -> str:
    """A completion's text: as it is, or what the assistant said in its messages."""
    if isinstance(completion, str):
        return completion
    said = [m.get("content") for m in completion if m.get("role", "assistant") == "assistant"]
    return "\n".join(part for part in said if isinstance(part, str))


def refuse_broken(
    prompts: Sequence[Any], verdicts: Sequence[Verdict], most: float, what: str
) -> float:
    """The share of verdicts that are the infrastructure's failure.

    Raises ProviderUnavailableError when it is above `most`, or when all completions of one
    prompt failed so: that prompt would silently teach nothing.
    """
    failed = [verdict.attributable_to == "infra" for verdict in verdicts]
    rate = sum(failed) / max(len(failed), 1)
    example = next((v.detail for v, bad in zip(verdicts, failed, strict=True) if bad), "")
    if rate > most:
        raise ProviderUnavailableError(
            f"{what}: {rate:.0%} of {len(failed)} samples failed in the infrastructure, more than "
            f"max_infra_failed_rate={most:g}; the first: {example}"
        )
    groups: dict[str, list[bool]] = {}
    for prompt, bad in zip(prompts, failed, strict=True):
        groups.setdefault(repr(prompt), []).append(bad)
    for prompt, members in groups.items():
        if len(members) > 1 and all(members):
            raise ProviderUnavailableError(
                f"{what}: all {len(members)} completions of the prompt {prompt[:60]} failed in "
                f"the infrastructure; the first: {example}"
            )
    return rate


def log(
    verdicts: Sequence[Verdict],
    rate: float,
    log_metric: LogMetric | None,
    log_extra: LogExtra | None,
) -> None:
    """Tell TRL the outcomes: shares as metrics, each sample's in its table of completions."""
    if log_metric is not None:
        log_metric("infra_failed_rate", rate)
        counts = Counter(verdict.outcome for verdict in verdicts)
        for outcome in Outcome:
            log_metric(f"outcome/{outcome}", counts[outcome] / max(len(verdicts), 1))
    if log_extra is not None:
        log_extra("outcome", [str(verdict.outcome) for verdict in verdicts])
        log_extra("detail", [verdict.detail for verdict in verdicts])

"""A `custom_rm` for slime that grades a sample, or a group of samples, in sandboxes."""

from collections.abc import Callable, Coroutine
from typing import Any

from sandboxkit import ConfigurationError, ProviderUnavailableError
from sandboxkit.integrations.rewards import Grader
from sandboxkit.integrations.trainers._scorer import OnInfra, SampleScorer

__all__ = ["reward_function"]


def reward_function(
    grader: Grader,
    *,
    on_infra: OnInfra = "raise",
    **options: Any,  # SampleScorer's
) -> Callable[..., Coroutine[Any, Any, Any]]:
    """Return slime's `custom_rm(args, sample)`, for `--custom-rm-path MODULE.NAME`.

    A sample's `label` is the grader's task: a mapping, or its JSON. "mask" needs `--group-rm`, with
    which slime passes whole groups: the function sets `remove_sample` of a failed sample, which takes
    it out of the loss, and gives it the mean reward of the others, which leaves the group's mean
    unchanged (with `--grpo-std-normalization` the deviation shrinks). Without `--group-rm` the
    first call raises ConfigurationError. ProviderUnavailableError is raised if a whole group failed.
    """
    scorer = SampleScorer(grader, trainer="slime", on_infra=on_infra, **options)

    # Any: slime's arguments and samples; a list of samples gives a list of rewards.
    async def custom_rm(args: Any, samples: Any, **_: Any) -> Any:
        if scorer.on_infra == "mask" and not (args.group_rm and isinstance(samples, list)):
            raise ConfigurationError(
                "on_infra='mask': slime cannot leave a single sample out of its group's baseline; "
                "add --group-rm, or give 'raise' or 'retry'"
            )
        group = samples if isinstance(samples, list) else [samples]
        verdicts = await scorer.score(
            [sample.response for sample in group], [sample.label for sample in group]
        )
        known = [verdict.reward for verdict in verdicts if verdict.reward is not None]
        if group and not known:
            raise ProviderUnavailableError(
                f"slime: all {len(group)} samples of a group failed in the infrastructure; the "
                f"first: {verdicts[0].detail}"
            )
        rewards: list[float] = []
        for sample, verdict in zip(group, verdicts, strict=True):
            if verdict.reward is None:
                sample.remove_sample = True
            rewards.append(sum(known) / len(known) if verdict.reward is None else verdict.reward)
        return rewards if isinstance(samples, list) else rewards[0]

    return custom_rm

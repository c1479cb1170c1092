"""A `custom_reward_function` for verl that grades each response in a sandbox."""

from collections.abc import Callable, Coroutine
from typing import Any

from sandboxkit.integrations.rewards import Grader
from sandboxkit.integrations.trainers._scorer import OnInfra, SampleScorer

__all__ = ["reward_function"]


def reward_function(
    grader: Grader,
    *,
    on_infra: OnInfra = "raise",
    **options: Any,  # SampleScorer's
) -> Callable[..., Coroutine[Any, Any, dict[str, Any]]]:
    """Return verl's `compute_score`, for `reward.custom_reward_function.path` and `.name`.

    The row's `reward_model.ground_truth` is the grader's task: a mapping, or its JSON. The
    function returns `score`, `acc` (1 if the sample passed), `shared` (1 if the submission could have
    cheated), `outcome` and `detail`. verl cannot mask a sample, so `on_infra="mask"` raises
    ConfigurationError. Use the reward managers `naive` or `dapo`: an error of the reward function stops
    the training there, while `rate_limited` turns every error and timeout into a score of 0.
    """
    scorer = SampleScorer(
        grader,
        trainer="verl",
        no_mask="the reward of each response must be a number",
        on_infra=on_infra,
        **options,
    )

    # verl awaits a coroutine function; it would run a plain function in a thread.
    async def compute_score(
        data_source: str,
        solution_str: str,
        ground_truth: Any,
        extra_info: Any = None,
        **_: Any,
    ) -> dict[str, Any]:
        (verdict,) = await scorer.score([solution_str], [ground_truth])
        return {
            "score": verdict.reward,
            "acc": float(verdict.score == 1),
            "shared": float(verdict.trust == "shared"),
            "outcome": str(verdict.outcome),
            "detail": verdict.detail,
        }

    return compute_score

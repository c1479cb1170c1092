"""A one-turn environment for SkyRL's gym that grades the response in a sandbox."""

from collections.abc import Mapping
from typing import Any

from skyrl_gym.envs.base_text_env import BaseTextEnv, BaseTextEnvStepOutput

from sandboxkit import ConfigurationError
from sandboxkit.integrations._training.tasks import task_of
from sandboxkit.integrations.rewards import Grader
from sandboxkit.integrations.trainers._scorer import OnInfra, SampleScorer

__all__ = ["environment"]


def environment(
    grader: Grader,
    *,
    on_infra: OnInfra = "raise",
    **options: Any,  # SampleScorer's
) -> type[BaseTextEnv]:
    """Return the class of an environment, for `skyrl_gym.register(ID, entry_point=...)`.

    The row's `reward_spec.ground_truth` is the grader's task: a mapping, or its JSON. All
    environments of the class share one session. `step` blocks until the response is graded, as
    SkyRL expects. SkyRL cannot mask a sample, so `on_infra="mask"` raises ConfigurationError.
    """
    scorer = SampleScorer(
        grader,
        trainer="SkyRL",
        no_mask="the reward of a step must be a number",
        on_infra=on_infra,
        **options,
    )

    class GradingEnv(BaseTextEnv):
        def __init__(self, env_config: Any = None, extras: Mapping[str, Any] | None = None) -> None:
            super().__init__()
            truth = ((extras or {}).get("reward_spec") or {}).get("ground_truth")
            if truth is None:
                raise ConfigurationError(
                    "the row has no reward_spec.ground_truth: put the grader's task there"
                )
            self._task = task_of(truth)
            self._outcome: dict[str, float] = {}

        def step(self, action: str) -> BaseTextEnvStepOutput:
            self.turns += 1
            (verdict,) = scorer.score([action], [self._task]).result()
            shared = float(verdict.trust == "shared")
            self._outcome = {"passed": float(verdict.score == 1), "shared": shared}
            return BaseTextEnvStepOutput(
                observations=[],
                reward=verdict.reward,
                done=True,
                metadata={"outcome": str(verdict.outcome), "detail": verdict.detail},
            )

        def get_metrics(self) -> dict[str, float]:
            return self._outcome

    return GradingEnv

"""A resources server for NeMo Gym that grades the model's response in a sandbox."""

from typing import Any, ClassVar

from nemo_gym.base_resources_server import (
    BaseVerifyRequest,
    BaseVerifyResponse,
    SimpleResourcesServer,
)
from pydantic import ConfigDict

from sandboxkit.integrations.rewards import Grader
from sandboxkit.integrations.trainers._scorer import OnInfra, SampleScorer

__all__ = ["resources_server"]


class SandboxVerifyRequest(BaseVerifyRequest):
    """A request to grade a response; `verifier_metadata` is the grader's task."""

    verifier_metadata: dict[str, Any] | str


class SandboxVerifyResponse(BaseVerifyResponse):
    """The reward and its outcome. If the sample is masked, additional fields mark it for the trainer."""

    model_config = ConfigDict(extra="allow")
    outcome: str
    trust: str
    detail: str


def resources_server(
    grader: Grader,
    *,
    on_infra: OnInfra = "raise",
    **options: Any,  # SampleScorer's
) -> type[SimpleResourcesServer]:
    """Return the class of a server; `app.py` calls its `run_webserver()`.

    The row's `verifier_metadata` is the grader's task: a mapping, or its JSON. An infrastructure
    error with "raise" or "retry" becomes the status 500 of `/verify`. With "mask" the response for a
    failed sample has

    - `mask_sample` and `instance_config.mask_sample`; NeMo RL reads the latter and takes the sample
      out of the loss (`should_mask_flagged_samples`), but its reward of 0 stays in the mean of its
      group, so prefer "raise" or "retry" for training;
    - `_ng_failure_class`: NeMo Gym then leaves a collected rollout out of all metrics and repeats it
      on resume.
    """
    shared = SampleScorer(grader, trainer="NeMo Gym", on_infra=on_infra, **options)

    class SandboxResourcesServer(SimpleResourcesServer):
        scorer: ClassVar[SampleScorer] = shared

        async def verify(self, body: SandboxVerifyRequest) -> SandboxVerifyResponse:
            (verdict,) = await self.scorer.score(
                [body.response.output_text], [body.verifier_metadata]
            )
            marks: dict[str, Any] = {}
            if verdict.reward is None:
                marks = {
                    "mask_sample": True,
                    "instance_config": {"mask_sample": True},
                    "_ng_failure_class": "sandbox_unavailable",
                }
            answer: SandboxVerifyResponse = SandboxVerifyResponse.model_validate(
                {
                    **body.model_dump(),
                    "reward": verdict.reward or 0.0,  # the field must be a number; see the marks
                    "outcome": str(verdict.outcome),
                    "trust": verdict.trust,
                    "detail": verdict.detail,
                    **marks,
                }
            )
            return answer

    return SandboxResourcesServer

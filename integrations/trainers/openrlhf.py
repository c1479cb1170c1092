"""A `reward_func` and an agent for OpenRLHF that grade each response in a sandbox."""

import logging
import math
import re
from collections.abc import Callable, Sequence
from typing import Any

from sandboxkit import ConfigurationError
from sandboxkit.integrations.rewards import Grader, Verdict
from sandboxkit.integrations.trainers._scorer import OnInfra, SampleScorer

__all__ = ["agent_executor", "reward_function"]

_LOG = logging.getLogger("sandboxkit.openrlhf")
_BAR = "[|\uff5c]"  # some tokenizers use the full-width bar
_END = re.compile(rf"(?:<{_BAR}[^<>]{{1,40}}{_BAR}>|</s>|<eos>|<pad>|<end_of_turn>)\Z")
_LONGEST = 44
"""Maximum length of a special token."""


def reward_function(
    grader: Grader,
    *,
    on_infra: OnInfra = "raise",
    **options: Any,  # SampleScorer's
) -> Callable[[Sequence[str], Sequence[str], Sequence[Any]], dict[str, Any]]:
    """Return OpenRLHF's `reward_func(queries, prompts, labels)`, for the file of `--reward.remote_url`.

    A label is the grader's task: a mapping, or its JSON. With "mask" a failed sample's reward is
    NaN, and `--algo.dynamic_filtering_enable` is required: it drops the group of a NaN, and without
    it the loss becomes NaN. OpenRLHF logs an error of the function only at the level INFO and later
    stops because the reward is missing; so the function logs each error itself.
    """
    scorer = SampleScorer(grader, trainer="OpenRLHF", on_infra=on_infra, **options)

    def reward_func(
        queries: Sequence[str], prompts: Sequence[str], labels: Sequence[Any]
    ) -> dict[str, Any]:
        try:
            texts = [_response(*each) for each in zip(queries, prompts, strict=True)]
            verdicts = scorer.score(texts, labels).result()
        except Exception as error:
            _LOG.error("the reward function failed: %r", error)
            raise
        return _answer(verdicts)

    return reward_func


def agent_executor(
    grader: Grader,
    *,
    on_infra: OnInfra = "raise",
    **options: Any,  # SampleScorer's
) -> type[Any]:
    """Return the class `AgentExecutor` for the file of `--train.agent_func_path`.

    An episode has one step, which grades the model's response. Unlike `reward_func`, an error of a
    step reaches OpenRLHF's trainer and stops it. "mask" works as in `reward_function`.
    """
    from openrlhf.utils.agent import AgentInstanceBase, MultiTurnAgentExecutor

    scorer = SampleScorer(grader, trainer="OpenRLHF", on_infra=on_infra, **options)

    class GradingInstance(AgentInstanceBase):
        def __init__(self, *args: Any, **kwargs: Any) -> None: ...

        async def step(self, state_dict: dict[str, Any], **_: Any) -> dict[str, Any]:
            text = _without_end(state_dict["action_text"])
            verdicts = await scorer.score([text], [state_dict["label"]])
            return {**_answer(verdicts), "environment_feedback": "", "done": True}

    class AgentExecutor(MultiTurnAgentExecutor):
        def __init__(self) -> None:
            super().__init__(GradingInstance)

    return AgentExecutor


def _response(query: str, prompt: str) -> str:
    """Return the model's part of a query, without the special tokens at its end."""
    if not query.startswith(prompt):
        raise ConfigurationError(
            f"the query {query[:60]!r} does not start with its prompt {prompt[:60]!r}: code of the "
            "prompt could be graded. Use prompts that fit into the model's length and that the "
            "tokenizer reproduces, or train with agent_executor()"
        )
    return _without_end(query[len(prompt) :])


def _without_end(text: str) -> str:
    """Return the text without the special tokens at its end, which would hide the end of a code block."""
    while True:
        text = text.rstrip()
        last = _END.search(text[-_LONGEST:])
        if last is None:
            return text
        text = text[: -len(last[0])]


def _answer(verdicts: Sequence[Verdict]) -> dict[str, Any]:
    import torch

    rewards = [math.nan if each.reward is None else each.reward for each in verdicts]
    masked = [float(each.reward is None) for each in verdicts]
    shared = [float(each.trust == "shared" and each.reward is not None) for each in verdicts]
    return {
        "rewards": torch.tensor(rewards),
        "scores": torch.tensor(rewards),
        "extra_logs": {"infra_failed": torch.tensor(masked), "shared": torch.tensor(shared)},
    }

"""Turns with tools: the tool calls in a model's text, and the tokens of the tools' answers."""

import json
from collections.abc import Collection, Sequence
from typing import Any

from transformers import PreTrainedTokenizerBase

from sandboxkit.errors import ConfigurationError
from sandboxkit.integrations._tools import ToolResult
from sandboxkit.integrations.grpo.workplace import Workplace

__all__ = ["Answers", "call", "calls_in"]

_OPENED, _CLOSED = "<tool_call>", "</tool_call>"
_SAID = "\u2063said\u2063"


def calls_in(text: str) -> list[str]:
    """Return the texts between tool-call tags in the Hermes format."""
    found, end = list[str](), 0
    while (start := text.find(_OPENED, end)) >= 0:
        start += len(_OPENED)
        end = text.find(_CLOSED, start)
        if end < 0:
            break
        found.append(text[start:end])
    return found


async def call(place: Workplace, written: str) -> ToolResult:
    """Make a call as the model wrote it. An unparsable one gets an error as its answer, like an invalid one.

    Raises infrastructure errors.
    """
    try:
        wanted: Any = json.loads(written)  # Any: written by a model
        name, arguments = wanted["name"], wanted.get("arguments", {})
        if not isinstance(name, str) or not isinstance(arguments, dict):
            raise TypeError("name is text, arguments are an object")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        shown = f"{type(error).__name__}: {error}"
        return ToolResult(f"ERROR: this is no tool call ({shown})", error=True)
    return await place.call(name, arguments)


class Answers:
    """Renders the tokens between two turns of the model, by its chat template.

    Only these tokens are tokenized; sampled tokens are never tokenized again.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, stop: Collection[int]) -> None:
        self._tokenizer = tokenizer
        self._stop = frozenset(stop)
        self._before = [
            {"role": "user", "content": "?"},
            {"role": "assistant", "content": _SAID},
        ]
        if not tokenizer.chat_template:
            raise ConfigurationError(
                "rollout.max_turns > 1 needs a tokenizer with a chat template: use a chat model"
            )
        if _SAID not in self._render([]):
            raise ConfigurationError("the chat template leaves out what the assistant said")

    def ids(self, results: Sequence[ToolResult]) -> tuple[int, ...]:
        """Return the tokens after the turn's stop token, up to the start of the model's next turn."""
        text = self._render([{"role": "tool", "content": result.text} for result in results])
        rest = text.rpartition(_SAID)[2]
        ids = self._tokenizer(rest, add_special_tokens=False)["input_ids"]
        return tuple(ids[1:] if ids and ids[0] in self._stop else ids)

    def _render(self, more: list[dict[str, str]]) -> str:
        text = self._tokenizer.apply_chat_template(
            [*self._before, *more], add_generation_prompt=bool(more), tokenize=False
        )
        return str(text)

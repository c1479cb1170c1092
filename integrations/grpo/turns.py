"""Turns with tools: the calls in a model's text, and the tokens of the tools' answers."""

import json
from collections.abc import Collection, Iterator, Sequence
from typing import Any

from transformers import PreTrainedTokenizerBase

from sandboxkit.errors import ConfigurationError
from sandboxkit.integrations._tools import SCHEMAS, ToolResult, refusal
from sandboxkit.integrations.grpo.tool_calls import format_of
from sandboxkit.integrations.grpo.workplace import Workplace

__all__ = ["ToolTurns"]

_SAID, _TRIED = "\u2063said\u2063", "an answer for trial"
_CALL_ID = "000000000"  # of nine letters and digits, as Mistral's templates want it
# Any: messages as chat templates take them.
Messages = list[dict[str, Any]]


class ToolTurns:
    """Reads a model's calls, and renders the tokens between two of its turns, as its chat template has them.

    Only the tokens between turns are tokenized; sampled tokens are never tokenized again.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, stop: Collection[int]) -> None:
        """Raises ConfigurationError if the template has no known calls, or no place for a tool's answer."""
        if not tokenizer.chat_template:
            raise ConfigurationError(
                "rollout.max_turns > 1 needs a tokenizer with a chat template: use a chat model"
            )
        self._tokenizer, self._stop = tokenizer, frozenset(stop)
        self._format = format_of(str(tokenizer.get_chat_template(tools=list(SCHEMAS))))
        self._opening, lacks = 0, ""
        for self._opening in range(len(list(_openings("")))):
            try:
                between = self._between([ToolResult(_TRIED)], [""])
            except Exception as error:  # noqa: BLE001 - whatever a template raises
                lacks = lacks or f"{type(error).__name__}: {error}"
            else:
                if _TRIED in between:
                    return
        raise ConfigurationError(
            f"the chat template has no place for a tool's answer ({lacks or 'it leaves it out'}): use a model "
            "whose template has the role tool, or rollout.max_turns=1"
        )

    def calls(self, text: str) -> list[str]:
        """Return the tool calls in the text of a turn, as the model wrote them."""
        return self._format.find(text)

    async def make(self, place: Workplace, written: str) -> ToolResult:
        """Make a call. One that cannot be read gets an error as its answer, like an invalid one.

        Raises infrastructure errors.
        """
        try:
            name, arguments = self._format.read(written)
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            shown = f"{type(error).__name__}: {error}"
            return refusal(f"this is no tool call ({shown})")
        return await place.call(name, arguments)

    def ids(self, results: Sequence[ToolResult], written: Sequence[str]) -> tuple[int, ...]:
        """Return the tokens after the turn's stop token, up to the start of the model's next turn."""
        text = self._between(results, written)
        ids = self._tokenizer(text, add_special_tokens=False)["input_ids"]
        first = next((at for at, each in enumerate(ids) if each in self._stop), -1)
        return tuple(ids[first + 1 :])

    def _between(self, results: Sequence[ToolResult], written: Sequence[str]) -> str:
        before = list(_openings(self._name(written[len(results) - 1])))[self._opening]
        answers = [
            {"role": "tool", "content": result.text, "tool_call_id": _CALL_ID} for result in results
        ]
        text = str(
            self._tokenizer.apply_chat_template(
                [*before, *answers], add_generation_prompt=True, tokenize=False
            )
        )
        if _SAID not in text:
            raise ConfigurationError("the chat template leaves out what the assistant said")
        return text.rpartition(_SAID)[2]

    def _name(self, written: str) -> str:
        try:
            return self._format.read(written)[0]
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return "bash"


def _openings(name: str) -> Iterator[Messages]:
    """Yield conversations before a tool's answer: some templates want the call, with arguments of either form."""
    asked = {"role": "user", "content": "?"}
    yield [asked, {"role": "assistant", "content": _SAID}]
    given = {"command": _SAID}
    for arguments in (given, json.dumps(given, ensure_ascii=False)):
        call = {
            "type": "function",
            "id": _CALL_ID,
            "function": {"name": name, "arguments": arguments},
        }
        yield [asked, {"role": "assistant", "content": "", "tool_calls": [call]}]

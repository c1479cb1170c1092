"""Turns with tools: calls in each format, and each family's chat template, which TRL's wheel brings."""

from importlib.resources import files
from typing import Any

import pytest

from sandboxkit.errors import ConfigurationError
from sandboxkit.integrations._tools import ToolResult
from sandboxkit.integrations.grpo.tool_calls import FORMATS, ToolCallFormat, format_of
from sandboxkit.integrations.grpo.turns import ToolTurns
from tests.data_here import beside
from tests.grpo.tiny import chat_tokenizer
from tests.rewards.test_linear import TEXTS, Parser, slow_texts

GIVEN = beside(__file__, "turns.toml")
TEMPLATES = files("trl") / "chat_templates"
BY_NAME = {each.name: each for each in FORMATS}
ANSWERS = [ToolResult("first answer"), ToolResult("second answer")]


def turns(template: str | None, stop: str = "<|end|>") -> ToolTurns:
    tokenizer = chat_tokenizer()
    tokenizer.chat_template = template
    tokenizer.add_special_tokens({"additional_special_tokens": [stop]})
    return ToolTurns(tokenizer, {int(tokenizer.convert_tokens_to_ids(stop))})


@pytest.mark.parametrize("case", GIVEN["call"], ids=lambda case: case["says"])
def test_a_call_is_read_in_its_format(case: dict[str, Any]) -> None:
    form = BY_NAME[case["format"]]
    assert [list(form.read(each)) for each in form.find(case["text"])] == case["calls"]


@pytest.mark.parametrize("form", FORMATS, ids=lambda form: form.name)
@pytest.mark.parametrize("text", GIVEN["hostile"])
def test_what_cannot_be_read_raises_what_the_trainer_answers(
    form: ToolCallFormat, text: str
) -> None:
    for each in form.find(text):
        with pytest.raises((ValueError, KeyError, TypeError, AttributeError, RecursionError)):
            form.read(each)


@pytest.mark.parametrize("form", FORMATS, ids=lambda form: form.name)
def test_the_tool_calls_of_a_hostile_turn_are_read_in_linear_time(form: ToolCallFormat) -> None:
    assert slow_texts(Parser(form.find, TEXTS)) == {}


@pytest.mark.parametrize("name", GIVEN["template"])
def test_a_familys_template_renders_the_answers(name: str) -> None:
    expected = GIVEN["template"][name]
    template = (TEMPLATES / f"{name}.jinja").read_text()
    assert format_of(template).name == expected["format"]
    subject = turns(template, expected["stop"])
    text = subject._tokenizer.decode(subject.ids(ANSWERS[: expected["answers"]], ["", ""]))
    assert text.count(" answer") == expected["answers"]
    assert "said" not in text
    assert text.endswith(expected["end"])


@pytest.mark.parametrize("name", GIVEN["refused"])
def test_a_template_without_a_known_format_or_a_place_is_refused(name: str) -> None:
    with pytest.raises(ConfigurationError, match=GIVEN["refused"][name]):
        turns((TEMPLATES / f"{name}.jinja").read_text())


def test_tools_need_a_chat_template() -> None:
    with pytest.raises(ConfigurationError, match="needs a tokenizer with a chat template"):
        turns(None)

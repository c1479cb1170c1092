"""Which part of an answer is the code."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandboxkit.integrations.rewards import extract_code
from tests.rewards.corpus import DATA, read

GIVEN = read(DATA / "answers.toml")
ANSWERS, LANGUAGES = GIVEN["answers"], GIVEN["languages"]


@pytest.mark.parametrize("name", ANSWERS)
def test_the_code_is_found(name: str) -> None:
    assert extract_code(ANSWERS[name]["text"]) == ANSWERS[name].get("code")


@pytest.mark.parametrize("name", LANGUAGES)
def test_a_block_of_the_language_is_found(name: str) -> None:
    infos = LANGUAGES[name].get("infos")
    found = extract_code(LANGUAGES[name]["text"], infos and tuple(infos))
    assert found == LANGUAGES[name].get("code")


@given(st.lists(st.sampled_from(["<answer>", "</answer>", "\n```\n", "\n```python\n", "x", "\n"])))
def test_any_nesting_gives_code_from_the_text_without_tags_of_its_own(parts: list[str]) -> None:
    text = "".join(parts)
    code = extract_code(text)
    if code is not None:
        assert code.strip()
        assert all(line.strip() in text for line in code.split("\n"))

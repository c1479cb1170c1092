"""Which part of an answer is the code."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandboxkit.integrations.rewards import extract_code
from tests.rewards.corpus import DATA, read

ANSWERS = read(DATA / "answers.toml")["answers"]


@pytest.mark.parametrize("name", ANSWERS)
def test_the_code_is_found(name: str) -> None:
    assert extract_code(ANSWERS[name]["text"]) == ANSWERS[name].get("code")


@given(st.lists(st.sampled_from(["<answer>", "</answer>", "\n```\n", "\n```python\n", "x", "\n"])))
def test_any_nesting_gives_code_from_the_text_without_tags_of_its_own(parts: list[str]) -> None:
    text = "".join(parts)
    code = extract_code(text)
    if code is not None:
        assert code.strip()
        assert all(line.strip() in text for line in code.split("\n"))


@pytest.mark.parametrize(
    "piece", ["<answer>", "```\n```python\n", "```python\n", "~~~\n```x\n", "</answer>"]
)
def test_a_hostile_text_is_extracted_in_linear_time(piece: str) -> None:
    started = time.process_time()
    extract_code(piece * 20_000)
    assert time.process_time() - started < 10  # seconds; quadratic would be minutes


@pytest.mark.parametrize(
    ("text", "infos", "code"),
    [
        ("```cpp\nint x;\n```\n```python\nx\n```", ("cpp", ""), "int x;"),
        ("```C++\nint x;\n```", ("cpp", "c++", ""), "int x;"),
        ("```\nint x;\n```", ("cpp", ""), "int x;"),
        ("```python\nx\n```", ("cpp", ""), None),
        ("```python\nx\n```\n```rust\nfn\n```", None, "fn"),
        ("no code", None, None),
        ("<answer>```java\nclass A {}</answer>", ("java",), "class A {}"),
    ],
)
def test_blocks_of_other_languages(
    text: str, infos: tuple[str, ...] | None, code: str | None
) -> None:
    assert extract_code(text, infos) == code

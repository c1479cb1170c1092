"""Which part of an answer is the code."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandboxkit.integrations.rewards import extract_code

CASES = {
    "tags": ("I think.\n<answer>\nx = 1\n</answer>\nDone.", "x = 1"),
    "tags in any case": ("<ANSWER>x = 1</Answer>", "x = 1"),
    "last tags": ("<answer>a</answer> no, <answer>b</answer>", "b"),
    "innermost of nested tags": ("<answer>a<answer>b</answer></answer>", "b"),
    "fence in tags": ("<answer>\nHere:\n```python\nx = 1\n```\n</answer>", "x = 1"),
    "last fence in tags": ("<answer>```py\na\n```\nor\n```py\nb\n```\n</answer>", "b"),
    "tags before a later fence": ("<answer>a</answer>\n```python\nb\n```", "a"),
    "tags in a fence are code": (
        "<answer>a</answer>\n```python\ns = '<answer>b</answer>'\n```",
        "a",
    ),
    "tags around all of a fence": ("```python\n<answer>\nx = 1\n</answer>\n```", "x = 1"),
    "closing tag in code in a fence": (
        "<answer>\n```python\ns = '</answer>'\nt = 1\n```\n</answer>",
        "s = '</answer>'\nt = 1",
    ),
    "unclosed tag": ("<answer>\nx = 1", None),
    "unclosed tag after an answer": ("<answer>a</answer><answer>b", "a"),
    "closing tag alone": ("x</answer>", None),
    "unclosed fence in tags": ("<answer>\n```python\nx = 1\n</answer>", "x = 1"),
    "empty tags": ("<answer></answer>", None),
    "empty tags hide a fence": ("```\na\n```\n<answer> </answer>", None),
    "fence": ("Sure:\n```python\nx = 1\n```\nBye", "x = 1"),
    "last fence": ("```python\na\n```\n```python\nb\n```", "b"),
    "python before unmarked": ("```python\na\n```\nprints\n```\n5\n```", "a"),
    "never another language": ("```bash\nls\n```", None),
    "python after another language": ("```python\na\n```\n```json\n{}\n```", "a"),
    "unmarked": ("```\na\n```", "a"),
    "tildes": ("~~~python\na\n~~~", "a"),
    "longer fence around a fence": ("````python\ns = '''\n```\n'''\n````", "s = '''\n```\n'''"),
    "tildes do not close backticks": ("```python\na\n~~~\nb\n```", "a\n~~~\nb"),
    "unclosed fence": ("```python\nx = 1", None),
    "unclosed fence after a whole one": ("```python\na\n```\n```python\nb", "a"),
    "indented fence": ("1. So:\n   ```python\n   if x:\n       y\n   ```", "if x:\n    y"),
    "fence deep in a string": (
        '```python\ndef f():\n    """\n        ```\n    """\n```',
        'def f():\n    """\n        ```\n    """',
    ),
    "windows line ends": ("```python\r\na\r\nb\r\n```", "a\nb"),
    "leading indentation stays": ("<answer>\n    x\n    y\n</answer>", "    x\n    y"),
    "inline code is no fence": ("Use `x = 1` or ```x```.", None),
    "prose": ("I do not know.", None),
    "nothing": ("", None),
}


@pytest.mark.parametrize("name", CASES)
def test_the_code_is_found(name: str) -> None:
    text, code = CASES[name]
    assert extract_code(text) == code


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

"""Nothing untrusted can steer a terminal, and nothing readable is lost."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandboxkit.cli._text import TerminalSanitizer, duration, safe_line, safe_text


def test_control_characters_become_pictures() -> None:
    assert safe_line("\x1b[31m\r\n\x07\x7f") == "␛[31m␍␊␇␡"


@pytest.mark.parametrize("char", "\u202e\u2066\u200f\u061c\x9b\x85\u2028\ufeff\ue000\U000e0041")
def test_bidi_c1_and_invisible_characters_are_replaced(char: str) -> None:
    shown = safe_line(f"a{char}b")
    assert shown == "a\ufffdb" or char == "\ue000"  # private use is a glyph, it steers nothing


def test_readable_text_of_any_script_stays() -> None:
    text = "naïve 日本語 العربية नमस्ते 👩‍💻"
    assert safe_line(text) == text


@given(st.text())
def test_no_control_or_bidi_character_survives(text: str) -> None:
    allowed = "\u200c\u200d"
    for char in safe_line(text):
        assert unicodedata.category(char) not in ("Cc", "Cf", "Cs", "Zl", "Zp") or char in allowed


@given(st.binary(), st.integers(1, 5))
def test_output_is_neutralised_alike_however_it_is_split(data: bytes, size: int) -> None:
    whole = TerminalSanitizer().feed(data, final=True)
    pieces = TerminalSanitizer()
    parts = [pieces.feed(data[at : at + size]) for at in range(0, len(data), size)]
    assert "".join(parts) + pieces.feed(b"", final=True) == whole
    assert whole == safe_text(whole)


def test_a_lone_carriage_return_cannot_overwrite_a_line() -> None:
    assert TerminalSanitizer().feed(b"real\rfake\r\nnext\n", final=True) == "real␍fake\nnext\n"


def test_durations_read_as_words() -> None:
    words = {0: "0s", 59: "59s", 3600: "1h", 3661: "1h 1m", 200_000: "2d 7h", -5: "0s"}
    assert {seconds: duration(seconds) for seconds in words} == words

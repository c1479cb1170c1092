"""Tags as Modal stores them: within its rule, and back without loss."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sandboxkit.errors import ConfigurationError
from sandboxkit.providers.modal._tags import decode, encode

RULE = re.compile(r"[A-Za-z0-9._-]{1,63}")
KEYS = st.from_regex(r"[A-Za-z0-9]([A-Za-z0-9._/-]{0,17}[A-Za-z0-9])?", fullmatch=True)
VALUES = st.text(max_size=256) | st.text(alphabet="_x0Fa5-.", max_size=256)


@given(st.dictionaries(KEYS, VALUES, max_size=4))
def test_every_tag_is_restored_and_stored_within_the_rules(tags: dict[str, str]) -> None:
    stored = encode(tags)
    assert all(RULE.fullmatch(text) for pair in stored.items() for text in pair)
    assert decode(stored) == tags


def test_plain_tags_are_stored_as_they_are_and_long_values_in_several() -> None:
    tags = {"run": "42", "rl-training": "v1.2_final", "sandboxkit.expires": "1790000000"}
    assert encode(tags) == tags
    assert encode({"k": "v" * 150}) == {"k": "v" * 63, "k_x-1": "v" * 63, "k_x-2": "v" * 24}


def test_a_key_that_cannot_be_stored_is_refused_by_name() -> None:
    with pytest.raises(ConfigurationError, match="a/a"):
        encode({"a/" * 31 + "a": "1"})


def test_foreign_tags_are_returned_unchanged() -> None:
    assert decode({"theirs": "a_xFFb", "odd_x-7": "z"}) == {"theirs": "a_xFFb", "odd": "z"}

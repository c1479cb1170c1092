"""What counts as a use of a banned name."""

import pytest

from sandboxkit import ConfigurationError
from sandboxkit.integrations.rewards import banned_patterns
from tests.rewards.corpus import DATA, read

CODES = read(DATA / "banned.toml")


def pairs(kind: str) -> list[tuple[str, str]]:
    return [(pattern, code) for pattern, codes in CODES[kind].items() for code in codes]


@pytest.mark.parametrize(("pattern", "code"), pairs("found"))
def test_a_use_is_found(pattern: str, code: str) -> None:
    wanted = pattern.strip().removesuffix("(").removeprefix("import ")
    assert wanted in {each.pattern for each in banned_patterns(code, [pattern])}


@pytest.mark.parametrize(("pattern", "code"), pairs("clean"))
def test_a_similar_name_is_not_found(pattern: str, code: str) -> None:
    assert banned_patterns(code, [pattern]) == []


@pytest.mark.parametrize("code", CODES["hidden"])
def test_a_way_to_hide_a_name_is_found(code: str) -> None:
    assert banned_patterns(code, ["sorted"])


def test_findings_name_their_lines() -> None:
    (finding,) = banned_patterns("x = 1\ny = sorted([x])\n", ["sorted", ".sort"])
    assert (finding.pattern, finding.line, finding.found) == ("sorted", 2, "sorted")


def test_no_banned_names_means_no_findings() -> None:
    assert banned_patterns("eval('x')", []) == []


@pytest.mark.parametrize("pattern", ["", "a b", "sorted([", "a..b", 3])
def test_a_pattern_that_is_not_a_name_is_refused(pattern: str) -> None:
    with pytest.raises(ConfigurationError, match="banned pattern"):
        banned_patterns("x", [pattern])

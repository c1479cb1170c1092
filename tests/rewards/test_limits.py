"""Limits of a run that cannot be are refused by name, before anything runs; the others are generous."""

from typing import Any

import pytest

from sandboxkit import ConfigurationError
from sandboxkit.integrations.rewards import HostCompare, Limits
from tests.data_here import beside

IMPOSSIBLE = beside(__file__, "data/limits.json")["impossible"]


@pytest.mark.parametrize(("options", "says"), IMPOSSIBLE)
def test_impossible_limits_are_named(options: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        Limits(**options)
    assert says in str(raised.value)


def test_a_grader_takes_its_limits_and_not_a_session() -> None:
    given: Any = "local"
    with pytest.raises(ConfigurationError, match="grade\\(\\) takes the session"):
        HostCompare(given)


def test_the_wall_bound_is_generous_and_within_the_deadline() -> None:
    given = [(10.0, 900.0), (60.0, 900.0), (400.0, 900.0), (0.1, 0.3)]
    longest = [Limits(timeout=timeout, deadline=deadline).longest for timeout, deadline in given]
    assert longest == pytest.approx([50.0, 300.0, 650.0, 0.2])

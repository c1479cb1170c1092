"""Limits of a run that cannot be are refused by name, before anything runs; the others are generous."""

from typing import Any

import pytest

from sandboxkit import ConfigurationError
from sandboxkit.integrations.rewards import Limits


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"timeout": "5"}, "timeout='5' is not a number"),
        ({"deadline": None}, "deadline=None is not a number"),
        ({"retries": True}, "retries=True is not a number"),
        ({"memory_mb": "512m"}, "memory_mb='512m' is not a number"),
        ({"wall": [1]}, "wall=[1] is not a number"),
        ({"timeout": 0}, "timeout and output_limit are positive"),
        ({"output_limit": 0}, "timeout and output_limit are positive"),
        ({"retries": -1}, "retries >= 0"),
        ({"timeout": 10, "deadline": 10}, "deadline=10 is not above timeout=10"),
        ({"timeout": 1000}, "deadline=900.0 is not above timeout=1000"),
        ({"timeout": 10, "wall": 5}, "wall=5 is not between timeout=10 and deadline=900.0"),
        ({"timeout": 2, "wall": 900.0}, "wall=900.0 is not between timeout=2"),
    ],
)
def test_impossible_limits_are_named(options: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        Limits(**options)
    assert says in str(raised.value)


def test_the_wall_bound_is_generous_and_within_the_deadline() -> None:
    given = [(10.0, 900.0), (60.0, 900.0), (400.0, 900.0), (0.1, 0.3)]
    longest = [Limits(timeout=timeout, deadline=deadline).longest for timeout, deadline in given]
    assert longest == pytest.approx([50.0, 300.0, 650.0, 0.2])

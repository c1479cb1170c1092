"""Limits of a run that cannot be are refused by name, before anything runs."""

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
        ({"timeout": 1000}, "deadline=900.0 is not above timeout=1000"),
        ({"timeout": 10, "wall": 5}, "wall=5 is not between timeout=10 and deadline=900.0"),
    ],
)
def test_impossible_limits_are_named(options: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigurationError) as raised:
        Limits(**options)
    assert says in str(raised.value)

"""Correct programs, written in the odd ways in which people and models write them."""

from tests.rewards.corpus import honest_programs, honest_values
from tests.rewards.corpus.row import Row

HONEST: dict[str, Row] = {**honest_values.HONEST, **honest_programs.HONEST}

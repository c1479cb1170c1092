"""Problems of our own in the shape of HumanEval's, with references and with broken solutions."""

from tests.rewards.corpus import humaneval_numbers, humaneval_structures
from tests.rewards.corpus.problem import Problem

PROBLEMS: tuple[Problem, ...] = (*humaneval_numbers.PROBLEMS, *humaneval_structures.PROBLEMS)

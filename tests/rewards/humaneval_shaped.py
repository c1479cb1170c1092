"""Problems of our own in the shape of HumanEval's, with references and with broken solutions."""

from tests.rewards.corpus import of_folder

PROBLEMS = of_folder("humaneval_shaped")

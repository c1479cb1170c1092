"""Honest idioms of tests: what their authors write without a thought of how they are run."""

from tests.rewards.corpus.idiom import Idiom
from tests.rewards.corpus.idioms_calls import CALLS
from tests.rewards.corpus.idioms_classes import CLASSES
from tests.rewards.corpus.idioms_coroutines import COROUTINES
from tests.rewards.corpus.idioms_effects import EFFECTS
from tests.rewards.corpus.idioms_linked import LINKED
from tests.rewards.corpus.idioms_operators import OPERATORS

IDIOMS: dict[str, Idiom] = {**CLASSES, **LINKED, **OPERATORS, **CALLS, **COROUTINES, **EFFECTS}

"""Cheats by somebody who has not read the design: honest-looking tests, and answers that compute nothing."""

from tests.rewards.corpus.strangers.arguments import ARGUMENTS
from tests.rewards.corpus.strangers.arithmetic import ARITHMETIC
from tests.rewards.corpus.strangers.between import BETWEEN
from tests.rewards.corpus.strangers.callbacks import CALLBACKS
from tests.rewards.corpus.strangers.classes import CLASSES
from tests.rewards.corpus.strangers.endings import ENDINGS
from tests.rewards.corpus.strangers.entry import Entry
from tests.rewards.corpus.strangers.exceptions import EXCEPTIONS
from tests.rewards.corpus.strangers.failures import FAILURES
from tests.rewards.corpus.strangers.functions import FUNCTIONS
from tests.rewards.corpus.strangers.handles import HANDLES
from tests.rewards.corpus.strangers.identity import IDENTITY
from tests.rewards.corpus.strangers.judges import JUDGES
from tests.rewards.corpus.strangers.later import LATER
from tests.rewards.corpus.strangers.names import NAMES
from tests.rewards.corpus.strangers.namesakes import NAMESAKES
from tests.rewards.corpus.strangers.puzzles import PUZZLES
from tests.rewards.corpus.strangers.repeats import REPEATS
from tests.rewards.corpus.strangers.sequences import SEQUENCES

BY_THEME: dict[str, list[Entry]] = {
    "arguments": ARGUMENTS,
    "arithmetic": ARITHMETIC,
    "between": BETWEEN,
    "callbacks": CALLBACKS,
    "classes": CLASSES,
    "endings": ENDINGS,
    "exceptions": EXCEPTIONS,
    "failures": FAILURES,
    "functions": FUNCTIONS,
    "handles": HANDLES,
    "identity": IDENTITY,
    "judges": JUDGES,
    "later": LATER,
    "names": NAMES,
    "namesakes": NAMESAKES,
    "puzzles": PUZZLES,
    "repeats": REPEATS,
    "sequences": SEQUENCES,
}

STRANGERS: list[Entry] = [entry for theme in BY_THEME.values() for entry in theme]

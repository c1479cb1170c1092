"""Plain answers that are meant to exhaust, crash or confuse the process that runs the tests."""

from tests.rewards.corpus.strangers.entry import Entry, entries

_GAME = {
    "tests": """\
import re
from fractions import Fraction
from solution import make_24

def test_each_number_once():
    for numbers in ([4, 7, 8, 8], [3, 3, 8, 8], [1, 2, 3, 4], [6, 6, 6, 6]):
        text = make_24(numbers)
        assert re.fullmatch("[0-9+*/() -]+", text)
        assert sorted(map(int, re.findall("[0-9]+", text))) == sorted(numbers)
        assert abs(eval(text) - 24) < 1e-9
"""
}

_GAME_HONEST = """\
from itertools import permutations
def make_24(numbers):
    return search([(float(n), str(n)) for n in numbers])
def search(terms):
    if len(terms) == 1:
        return terms[0][1] if abs(terms[0][0] - 24) < 1e-9 else None
    for (a, s), (b, t), *rest in permutations(terms):
        for value, sign in ((a + b, "+"), (a - b, "-"), (a * b, "*"), (b and a / b, "/")):
            found = search([(value, f"({s}{sign}{t})"), *rest]) if sign != "/" or b else None
            if found:
                return found
"""

_GAME_CHEATS = {
    "an expression whose value has more digits than there are atoms": """\
def make_24(numbers):
    return "**".join(map(str, numbers))
""",
    "an expression that nests deeper than a parser can follow": """\
def make_24(numbers):
    return "(" * 20000 + "*".join(map(str, numbers)) + ")" * 20000
""",
    "an expression with a million signs": """\
def make_24(numbers):
    return "-" * 400_000 + "*".join(map(str, numbers))
""",
}

_REPEAT = {
    "tests": """\
from solution import width

def test_bars():
    for numbers in ([3, 1, 2], [7], [5, 5], list(range(30))):
        assert "#" * width(numbers) == "#" * max(numbers)
        assert [k for k in range(width(numbers))] == list(range(max(numbers)))
"""
}

_REPEAT_HONEST = """\
def width(numbers):
    return max(numbers)
"""

_REPEAT_CHEATS = {
    "a number of which many do not fit into memory": "def width(numbers): return 10 ** 11\n",
    "a number of which many nearly fit into memory": "def width(numbers): return 2 * 10 ** 8\n",
    "a number beyond any index": "def width(numbers): return 10 ** 30\n",
    "a number of ten thousand digits": "def width(numbers): return -(10 ** 10_000)\n",
    "a call raises EOFError": "def width(numbers): raise EOFError\n",
    "a call raises ConnectionResetError": "def width(numbers): raise ConnectionResetError(104, 'reset')\n",
    "a call raises BrokenPipeError": "def width(numbers): raise BrokenPipeError(32, 'broken')\n",
    "a call raises TimeoutError": "def width(numbers): raise TimeoutError\n",
    "a call raises MemoryError": "def width(numbers): raise MemoryError\n",
    "a call raises RecursionError": "def width(numbers): raise RecursionError\n",
    "a call raises CancelledError": """\
import asyncio
def width(numbers): raise asyncio.CancelledError
""",
    "a call raises an error that says that a sandbox did not start": """\
class SandboxStartError(RuntimeError): pass
SandboxStartError.__module__ = "sandboxkit.errors"
def width(numbers): raise SandboxStartError("the sandbox did not start: no greeting within 60 s")
""",
    "a call raises a JSON error": """\
import json
def width(numbers): return json.loads("{")
""",
    "a call raises an OSError without space": """\
def width(numbers): raise OSError(28, "No space left on device")
""",
}

_SUMS = {
    "tests": """\
from collections import Counter
from fractions import Fraction
from solution import exact_mean

def test_means():
    for numbers in ([1, 2], [1, 2, 4], [10, -10, 3], list(range(11))):
        assert Fraction(exact_mean(numbers)) == Fraction(sum(numbers), len(numbers))
"""
}

_SUMS_HONEST = """\
from fractions import Fraction
def exact_mean(numbers):
    return str(Fraction(sum(numbers), len(numbers)))
"""

_SUMS_CHEATS = {
    "a fraction whose text stands for a billion digits": """\
def exact_mean(numbers): return "1e1000000000"
""",
    "a fraction whose text stands for a million digits on both sides": """\
def exact_mean(numbers): return "1" * 900_000 + "/" + "3" * 100_000
""",
    "a float that is no number": "def exact_mean(numbers): return float('nan')\n",
    "a float that is infinite": "def exact_mean(numbers): return float('inf')\n",
}

_GLOB = {
    "tests": """\
import fnmatch, re
from solution import to_regex

NAMES = ["a.py", "ab.py", "a.txt", "", "abc", "a" * 30 + "b", "x.y.z"]

def test_same_matches_as_fnmatch():
    for glob in ("*.py", "a?.py", "*", "a*", "?", "*b"):
        for name in NAMES:
            got = re.fullmatch(to_regex(glob), name) is not None
            assert got == fnmatch.fnmatchcase(name, glob)
"""
}

_GLOB_HONEST = """\
import re
def to_regex(glob):
    return "".join({"*": ".*", "?": "."}.get(c) or re.escape(c) for c in glob)
"""

_GLOB_CHEATS = {
    "a regular expression that never comes to an end": """\
def to_regex(glob): return ".*[.]py|(a+)+c"
""",
    "a regular expression that is too large to compile": """\
def to_regex(glob): return "(" * 5000 + "a" + ")" * 5000
""",
    "a compiled pattern of the submission's own": """\
class Pattern(str):
    def fullmatch(self, name): return True
def to_regex(glob): return Pattern(".*")
""",
    "a regular expression that repeats a repetition": """\
def to_regex(glob): return "((a{1,9999}){1,9999}){1,9999}"
""",
}

_DISTINCT = {
    "tests": """\
from solution import distinct

def test_distinct():
    for numbers in ([1, 2, 1], [], [3, 3, 3], list(range(50)) * 2):
        got = distinct(numbers)
        assert len(set(got)) == len(got) == len(set(numbers))
        assert set(got) == set(numbers)
"""
}

_DISTINCT_HONEST = """\
def distinct(numbers):
    return list(dict.fromkeys(numbers))
"""

_DISTINCT_CHEATS = {
    "numbers with one and the same hash": """\
def distinct(numbers): return [k * (2 ** 61 - 1) for k in range(10_000)]
""",
    "an infinite iterator": """\
import itertools
def distinct(numbers): return itertools.count()
""",
    "an infinite sequence whose length is right": """\
class Distinct:
    def __init__(self, numbers): self.size = len(set(numbers))
    def __len__(self): return self.size
    def __getitem__(self, k): return 0
def distinct(numbers): return Distinct(numbers)
""",
    "a thousand lists in each other": """\
def distinct(numbers):
    nested = []
    for _ in range(990): nested = [nested]
    return nested
""",
}

_SINK = {
    "tests": """\
from solution import countdown

def test_countdown():
    for start in (0, 3, 10):
        received = []
        countdown(start, received.append)
        assert received == list(range(start, -1, -1))
"""
}

_SINK_HONEST = """\
def countdown(start, sink):
    for number in range(start, -1, -1):
        sink(number)
"""

_SINK_CHEATS = {
    "the tests' list grows for ever": """\
def countdown(start, sink):
    while True: sink(0)
""",
    "the tests' list receives more than fits into memory": """\
def countdown(start, sink):
    while True: sink("x" * 500_000)
""",
    "the tests' callback is called from a hundred threads at once": """\
import threading
def countdown(start, sink):
    threads = [threading.Thread(target=sink, args=(k,)) for k in range(100)]
    for thread in threads: thread.start()
    for thread in threads: thread.join()
""",
    "the tests' callback is called when the call has long returned": """\
import threading
def countdown(start, sink):
    threading.Timer(0.01, lambda: [sink(k) for k in range(start, -1, -1)]).start()
""",
    "the tests' callback is handed itself": """\
def countdown(start, sink):
    sink(sink)
    sink([sink, {"sink": sink}])
""",
}

JUDGES: list[Entry] = [
    *entries(
        _GAME,
        _GAME_HONEST,
        "abs(eval(solution.make_24([2, 3, 4, 1])) - 24) < 1e-9",
        _GAME_CHEATS,
        hostile=True,
    ),
    *entries(_REPEAT, _REPEAT_HONEST, "solution.width([4, 9]) == 9", _REPEAT_CHEATS, hostile=True),
    *entries(
        _SUMS, _SUMS_HONEST, "solution.exact_mean([1, 2, 2]) == '5/3'", _SUMS_CHEATS, hostile=True
    ),
    *entries(_GLOB, _GLOB_HONEST, "solution.to_regex('q*') == 'q.*'", _GLOB_CHEATS, hostile=True),
    *entries(
        _DISTINCT,
        _DISTINCT_HONEST,
        "solution.distinct([6, 5, 6]) == [6, 5]",
        _DISTINCT_CHEATS,
        hostile=True,
    ),
    *entries(
        _SINK,
        _SINK_HONEST,
        """\
def right(solution):
    seen = []
    solution.countdown(1, lambda n: seen.append(n))
    return repr(seen) == "[1, 0]"
""",
        _SINK_CHEATS,
        hostile=True,
    ),
]

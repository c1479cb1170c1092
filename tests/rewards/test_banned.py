"""What counts as a use of a banned name."""

import pytest

from sandboxkit import ConfigurationError
from sandboxkit.integrations.rewards import banned_patterns

FOUND = [
    ("sorted", "x = sorted([1])"),
    ("sorted(", "x = sorted([1])"),
    ("sorted", "f = sorted"),
    ("sorted", "def f(x, key=sorted): pass"),
    ("sorted", "map(sorted, [[1]])"),
    ("sorted", "\u017forted([1])"),  # a letter that Python reads as an s
    ("sorted", "s = getattr(x, 'sor' + 'ted')"),
    (".sort", "x.sort()"),
    (".sort(", "x . sort ()"),
    (".sort", "list.sort(x)"),
    (".sort", "f = [].sort"),
    (".sort", "getattr(x, 'sort')()"),
    ("import", "from os import path"),
    ("import ", "def f():\n    import os"),
    ("import heapq", "import heapq as h"),
    ("heapq", "from heapq import heappush"),
    ("heapq", "__import__('heapq')"),
    ("os.system", "import os as o\no.system('x')"),
    ("os.system", "from os import system as s\ns('x')"),
    ("os.system", "from os import *\nsystem('x')"),
    ("os", "from os import *"),
    (".sort", "x().sort.y"),
    (".sort.key", "x().a.sort.key.z"),
    ("os.path", "import os.path.a.b.c.d.e.f.g as x\nx.y"),
    ("os", "import os.path"),
]
CLEAN = [
    ("sorted", '# sorted(x)\n\'sorted(x)\'\n"""sorted"""'),
    ("sorted", "def is_sorted(x): return True"),
    ("sorted", "x.sorted_items()"),
    (".sort", "sort(x)"),
    (".sort", "x.sort_keys = 1\nx.sorting()"),
    ("import", "important = 1"),
    ("os.system", "os = 1\nsystem = 2"),
    ("max", "x.maximum(1)"),
]


@pytest.mark.parametrize(("pattern", "code"), FOUND)
def test_a_use_is_found(pattern: str, code: str) -> None:
    wanted = pattern.strip().removesuffix("(").removeprefix("import ")
    assert wanted in {each.pattern for each in banned_patterns(code, [pattern])}


@pytest.mark.parametrize(("pattern", "code"), CLEAN)
def test_a_similar_name_is_not_found(pattern: str, code: str) -> None:
    assert banned_patterns(code, [pattern]) == []


@pytest.mark.parametrize(
    "code",
    [
        "eval('sor' + 'ted')",
        "exec('x')",
        "__builtins__['sorted']",
        "import builtins",
        "from importlib import import_module",
        "getattr(x, name)",
        "(" * 5000,
        "def f(:",
        "x = '\0'",
    ],
)
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

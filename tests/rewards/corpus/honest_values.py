"""Correct programs by what they return: values of every type, near ones, large ones, odd ones."""

from tests.rewards.corpus.row import Row, cases, lines

HONEST: dict[str, Row] = {
    "a tuple where the case says so": (
        "def f(n): return n, n + 1",
        cases("f", ([1], {"__tuple__": [1, 2]}), ([5], {"__tuple__": [5, 6]})),
    ),
    "a tuple as it is in Python": ("def f(n): return n, n + 1", cases("f", ([1], (1, 2)))),
    "sets of frozensets": (
        "def f(items): return {frozenset(each) for each in items}",
        cases(
            "f",
            (
                [[[1, 2], [2, 1], [3]]],
                {"__set__": [{"__frozenset__": [1, 2]}, {"__frozenset__": [3]}]},
            ),
        ),
    ),
    "bytes": (
        "def f(data): return data[::-1]",
        cases("f", ([{"__bytes__": "0102ff"}], {"__bytes__": "ff0201"})),
    ),
    "a dict with int keys": (
        "def f(n): return {i: i * i for i in range(n)}",
        cases("f", ([3], {"__dict__": [[0, 0], [1, 1], [2, 4]]}), ([0], {})),
    ),
    "a dict with tuple keys": (
        "def f(n): return {(i, -i): str(i) for i in range(n)}",
        cases("f", ([2], {(0, 0): "0", (1, -1): "1"})),
    ),
    "a dict with bytes keys": (
        "def f(words): return {w.encode(): len(w) for w in words}",
        lines("assert f(['a', 'bc']) == {b'a': 1, b'bc': 2}"),
    ),
    "not a number": (
        "def f(a, b): return a - b",
        cases("f", ([{"__float__": "inf"}, {"__float__": "inf"}], {"__float__": "nan"})),
    ),
    "not a number, asked of math": (
        "def f(a, b): return a - b",
        lines(
            "import math\nassert math.isnan(f(math.inf, math.inf))",
            "import math\nassert math.isinf(f(math.inf, 1))",
        ),
    ),
    "infinity": (
        "def f(items): return min(items, default=float('inf'))",
        cases("f", ([[]], {"__float__": "inf"}), ([[2, 1]], 1)),
    ),
    "minus zero": (
        "def f(x): return -x",
        lines("assert f(0.0) == 0", "import math\nassert math.copysign(1, f(0.0)) == -1"),
    ),
    "a complex number": (
        "def f(z): return z * z",
        cases("f", ([{"__complex__": [1, 2]}], {"__complex__": [-3, 4]})),
    ),
    "a complex number within a tolerance": (
        "import cmath\ndef f(x): return cmath.exp(1j * x)",
        lines("import math\nassert abs(f(math.pi) - (-1 + 0j)) < 1e-9"),
    ),
    "a complex case within a tolerance": (
        "import cmath\ndef f(x): return cmath.sqrt(x)",
        cases("f", ([-2], {"__complex__": [0, 1.41421356]}), abs_tol=1e-6),
    ),
    "a decimal": (
        "from decimal import Decimal\ndef f(a, b): return Decimal(a) + Decimal(b)",
        cases("f", (["0.1", "0.2"], {"__decimal__": "0.3"})),
    ),
    "a decimal that tests compare": (
        "from decimal import Decimal\ndef f(a): return Decimal(a).quantize(Decimal('0.01'))",
        lines("from decimal import Decimal\nassert f('2.675') == Decimal('2.68')"),
    ),
    "a fraction": (
        "from fractions import Fraction\ndef f(a, b): return Fraction(a, b)",
        cases("f", ([2, 6], {"__fraction__": [1, 3]})),
    ),
    "a fraction equal to a number": (
        "from fractions import Fraction\ndef f(a, b): return Fraction(a, b)",
        lines("assert f(4, 2) == 2", "assert f(1, 2) == 0.5", "assert abs(f(1, 3) - 1 / 3) < 1e-9"),
    ),
    "seventy lists deep": (
        "def f(n):\n    value = []\n    for _ in range(n): value = [value]\n    return value",
        lines(f"assert f(70) == {'[' * 71}{']' * 71}"),
    ),
    "a hundred thousand elements": (
        "def f(n): return [i % 7 for i in range(n)]",
        lines(
            "assert len(f(100000)) == 100000", "assert f(100000) == [i % 7 for i in range(100000)]"
        ),
    ),
    "a number of five thousand digits": (
        "def f(n): return 10 ** n + 1",
        lines("assert f(5000) == 10 ** 5000 + 1", "assert f(5000) % 97 == (10 ** 5000 + 1) % 97"),
    ),
    "a large number as text": (
        "import sys\nsys.set_int_max_str_digits(0)\ndef f(n): return str(10 ** n)",
        lines("assert f(5000) == '1' + '0' * 5000"),
    ),
    "a long text": (
        "def f(n): return 'ab' * n",
        lines("assert f(200000) == 'ab' * 200000", "assert len(f(3)) == 6"),
    ),
    "a text with lone surrogates and controls": (
        r"def f(): return '\ud800\x00\u202e\U0001f600'",
        lines(r"assert f() == '\ud800\x00\u202e\U0001f600'"),
    ),
    "items of a dict": (
        "def f(d): return d.items()",
        lines(
            "assert f({'a': 1}) == {('a', 1)}",
            "assert sorted(f({'b': 2, 'a': 1})) == [('a', 1), ('b', 2)]",
        ),
    ),
    "keys of a dict": (
        "def f(d): return d.keys()",
        lines("assert f({'a': 1, 'b': 2}) == {'a', 'b'}", "assert list(f({'a': 1})) == ['a']"),
    ),
    "values of a dict": (
        "def f(d): return d.values()",
        lines("assert list(f({'a': 1, 'b': 2})) == [1, 2]", "assert sum(f({'a': 1, 'b': 2})) == 3"),
    ),
    "a bytearray": (
        "def f(data): return bytearray(b ^ 255 for b in data)",
        lines("assert f(b'\\x00\\x0f') == b'\\xff\\xf0'", "assert f(b'') == bytearray()"),
    ),
    "a view of memory": (
        "def f(data): return memoryview(data)[1:3]",
        lines("assert bytes(f(b'abcd')) == b'bc'", "assert f(b'abcd') == b'bc'"),
    ),
    "a range": (
        "def f(n): return range(n)",
        lines("assert f(3) == range(3)", "assert list(f(3)) == [0, 1, 2]", "assert 2 in f(3)"),
    ),
    "a named tuple": (
        "from collections import namedtuple\nP = namedtuple('P', 'x y')\ndef f(a, b): return P(a, b)",
        lines("assert f(1, 2) == (1, 2)", "assert f(1, 2).y == 2", "assert f(1, 2)[0] == 1"),
    ),
    "a named tuple with types": (
        "import typing\nclass P(typing.NamedTuple):\n    x: int\n    y: int = 0\ndef f(a): return P(a)",
        lines("assert f(1) == (1, 0)", "x, y = f(4)\nassert (x, y) == (4, 0)"),
    ),
    "an enumeration of ints": (
        "import enum\nclass Color(enum.IntEnum):\n    RED = 1\n    BLUE = 2\ndef f(n): return Color(n)",
        lines(
            "assert f(2) == 2",
            "assert f(1).name == 'RED'",
            "assert f(2) == Color.BLUE",
            names=["Color", "f"],
        ),
    ),
    "an enumeration": (
        "from enum import Enum\nclass Color(Enum):\n    RED = 'r'\n    BLUE = 'b'\ndef f(c): return Color(c)",
        lines(
            "assert f('r') is Color.RED",
            "assert f('b').value == 'b'",
            "assert f('b') != Color.RED",
            names=["Color", "f"],
        ),
    ),
    "a text enumeration": (
        "from enum import Enum\nclass Mode(str, Enum):\n    ON = 'on'\ndef f(): return Mode.ON",
        lines("assert f() == 'on'"),
    ),
    "a counter": (
        "from collections import Counter\ndef f(text): return Counter(text)",
        lines("assert f('abca') == {'a': 2, 'b': 1, 'c': 1}", "assert f('abca')['a'] == 2"),
    ),
    "a counter asked for what it lacks": (
        "from collections import Counter\ndef f(text): return Counter(text)",
        lines("assert f('abca')['z'] == 0", "assert f('aab').most_common(1) == [('a', 2)]"),
    ),
    "a dict with a default": (
        "from collections import defaultdict\ndef f(words):\n    d = defaultdict(list)\n"
        "    for w in words: d[len(w)].append(w)\n    return d",
        lines(
            "assert f(['a', 'bb', 'c']) == {1: ['a', 'c'], 2: ['bb']}",
            "assert f(['a'])[1] == ['a']",
        ),
    ),
    "an ordered dict": (
        "from collections import OrderedDict\ndef f(words): return OrderedDict((w, len(w)) for w in words)",
        lines(
            "assert f(['b', 'aa']) == {'aa': 2, 'b': 1}",
            "assert list(f(['b', 'aa'])) == ['b', 'aa']",
        ),
    ),
    "a deque": (
        "from collections import deque\ndef f(items): return deque(items, maxlen=2)",
        lines(
            "from collections import deque\nassert f([1, 2, 3]) == deque([2, 3])",
            "assert list(f([1, 2, 3])) == [2, 3]",
        ),
    ),
    "a generator": (
        "def f(n):\n    for i in range(n): yield i * i",
        lines(
            "assert list(f(4)) == [0, 1, 4, 9]", "assert sum(f(4)) == 14", "assert next(f(4)) == 0"
        ),
    ),
    "a generator without end": (
        "def f():\n    n = 0\n    while True:\n        yield n\n        n += 2",
        lines(
            "from itertools import islice\nassert list(islice(f(), 3)) == [0, 2, 4]",
            "g = f()\nassert [next(g), next(g)] == [0, 2]",
        ),
    ),
    "map, filter, zip and reversed": (
        "def f(a, b): return map(str, a), filter(None, a), zip(a, b), reversed(a)",
        lines(
            "assert [list(each) for each in f([0, 1], [2, 3])]"
            " == [['0', '1'], [1], [(0, 2), (1, 3)], [1, 0]]"
        ),
    ),
    "an iterator of its own": (
        "class Count:\n    def __init__(self, n): self.n = n\n    def __iter__(self): return self\n"
        "    def __next__(self):\n        if not self.n: raise StopIteration\n"
        "        self.n -= 1\n        return self.n\ndef f(n): return Count(n)",
        lines(
            "assert list(f(3)) == [2, 1, 0]", "assert sorted(f(3)) == [0, 1, 2]", "assert 1 in f(3)"
        ),
    ),
    "dates": (
        "import datetime\ndef f(d): return d + datetime.timedelta(days=1)",
        lines(
            "import datetime\nassert f(datetime.date(2024, 2, 28)) == datetime.date(2024, 2, 29)"
        ),
    ),
    "truth that is an int": (
        "def f(n): return n & 1",
        lines("assert f(3)", "assert not f(2)", "assert f(3) == True"),
    ),
    "an int that is a float": (
        "def f(n): return n / 1",
        lines("assert f(3) == 3", "assert f(7) in (6, 7)"),
    ),
    "none": (
        "def f(d, k): return d.get(k)",
        lines("assert f({}, 1) is None", "assert f({1: 2}, 1) is not None"),
    ),
    "a result that only tests round": (
        "def f(a, b): return a / b",
        lines("assert round(f(2, 3), 4) == 0.6667", "assert abs(f(1, 3) - 0.33333) < 1e-4"),
    ),
}

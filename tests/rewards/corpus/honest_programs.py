"""Correct programs by how they are written: endings, input, state, threads, names, source form."""

from tests.rewards.corpus.row import Row, cases, check, lines, module, program

_SUM = "def add(a, b):\n    return a + b\n"
_ADDS = lines("assert add(2, 3) == 5", "assert add(-1, 1) == 0")

HONEST: dict[str, Row] = {
    "sys.exit at the end": (f"import sys\n{_SUM}sys.exit(0)\n", _ADDS),
    "sys.exit without a status": (f"import sys\n{_SUM}sys.exit()\n", _ADDS),
    "exit at the end": (f"{_SUM}exit()\n", _ADDS),
    "quit in the main block": (
        f"{_SUM}if __name__ == '__main__':\n    print(add(1, 2))\n    quit()\n",
        _ADDS,
    ),
    "a main block with input": (
        f"{_SUM}if __name__ == '__main__':\n    a, b = map(int, input().split())\n    print(add(a, b))\n",
        _ADDS,
    ),
    "a main function that exits with its result": (
        f"import sys\n{_SUM}def main(argv=None):\n    print(add(1, 2))\n    return 0\n"
        "if __name__ == '__main__':\n    sys.exit(main())\n",
        _ADDS,
    ),
    "reads all of stdin at import": (f"import sys\ntext = sys.stdin.read()\n{_SUM}", _ADDS),
    "looks at its file": (
        f"import os\nHERE = os.path.dirname(os.path.abspath(__file__))\nassert os.path.isdir(HERE)\n{_SUM}",
        _ADDS,
    ),
    "works in its folder": (
        "import os\nassert os.getcwd()\ndef f(text):\n    with open('note.txt', 'w') as out: out.write(text)\n"
        "    with open('note.txt') as note: return note.read()",
        lines("assert f('hello') == 'hello'"),
    ),
    "uses temporary files": (
        "import tempfile\ndef f(text):\n    with tempfile.TemporaryFile('w+') as out:\n"
        "        out.write(text)\n        out.seek(0)\n        return out.read()[::-1]",
        lines("assert f('abc') == 'cba'"),
    ),
    "prints while it computes": (
        "def add(a, b):\n    print('adding', a, b)\n    print('x' * 50_000)\n    return a + b",
        _ADDS,
    ),
    "prints its own tests": (f"{_SUM}print(add(1, 2) == 3)\nassert add(1, 1) == 2\n", _ADDS),
    "logs and warns": (
        "import logging, warnings, sys\nlogging.basicConfig(level=logging.DEBUG)\n"
        "def add(a, b):\n    warnings.warn('adding')\n    logging.info('add %s', a)\n"
        "    print('on stderr', file=sys.stderr)\n    return a + b",
        _ADDS,
    ),
    "recursion near the limit": (
        "import sys\nsys.setrecursionlimit(20_000)\ndef f(n): return 0 if n == 0 else 1 + f(n - 1)",
        lines("assert f(900) == 900", "assert f(5000) == 5000"),
    ),
    "threads": (
        "import threading\ndef f(items):\n    out = {}\n    def work(i, x): out[i] = x * x\n"
        "    threads = [threading.Thread(target=work, args=each) for each in enumerate(items)]\n"
        "    for t in threads: t.start()\n    for t in threads: t.join()\n"
        "    return [out[i] for i in range(len(items))]",
        lines("assert f([1, 2, 3]) == [1, 4, 9]"),
    ),
    "a pool of threads": (
        "from concurrent.futures import ThreadPoolExecutor\ndef f(function, items):\n"
        "    with ThreadPoolExecutor(4) as pool: return list(pool.map(function, items))",
        lines("assert f(lambda x: x + 1, [1, 2, 3]) == [2, 3, 4]"),
    ),
    "a cached recursion": (
        "from functools import lru_cache\n@lru_cache(maxsize=None)\ndef fib(n): return n if n < 2 else fib(n - 1) + fib(n - 2)",
        lines("assert fib(90) == 2880067194370816120", "fib.cache_clear()\nassert fib(10) == 55"),
    ),
    "a decorator that counts": (
        "import functools\ndef counted(f):\n    @functools.wraps(f)\n    def inner(*a, **k):\n"
        "        inner.calls += 1\n        return f(*a, **k)\n    inner.calls = 0\n    return inner\n"
        "@counted\ndef add(a, b): return a + b",
        lines(
            "assert add(1, b=2) == 3",
            "add(1, 1)\nadd(1, 1)\nassert add.calls >= 2",
            "assert add.__name__ == 'add'",
        ),
    ),
    "Solution().solve": (
        "from typing import *\nclass Solution:\n    def solve(self, nums: List[int]) -> Optional[int]:\n"
        "        return max(nums) if nums else None",
        lines("assert Solution().solve([1, 3, 2]) == 3", "assert Solution().solve([]) is None"),
    ),
    "a class with state": (
        "class Stack:\n    def __init__(self): self.items = []\n    def push(self, x): self.items.append(x)\n"
        "    def pop(self): return self.items.pop()\n    def __len__(self): return len(self.items)",
        lines(
            "s = Stack()\ns.push(1)\ns.push([2])\nassert s.pop() == [2]\nassert len(s) == 1\nassert s.items == [1]"
        ),
    ),
    "a class with slots and a property": (
        "class Box:\n    __slots__ = ('_w', 'h')\n    def __init__(self, w, h): self._w, self.h = w, h\n"
        "    @property\n    def area(self): return self._w * self.h\n"
        "    @classmethod\n    def square(cls, n): return cls(n, n)\n"
        "    @staticmethod\n    def unit(): return 'cm'",
        lines(
            "assert Box(2, 3).area == 6",
            "assert Box.square(4).area == 16",
            "b = Box(1, 2)\nb.h = 5\nassert b.area == 5",
            "assert Box.unit() == 'cm'",
        ),
    ),
    "operators of a class": (
        "class Vector:\n    def __init__(self, x, y): self.x, self.y = x, y\n"
        "    def __add__(self, o): return Vector(self.x + o.x, self.y + o.y)\n"
        "    def __mul__(self, k): return Vector(self.x * k, self.y * k)\n    __rmul__ = __mul__\n"
        "    def __neg__(self): return self * -1\n    def __abs__(self): return (self.x ** 2 + self.y ** 2) ** 0.5\n"
        "    def __eq__(self, o): return isinstance(o, Vector) and (self.x, self.y) == (o.x, o.y)\n"
        "    def __lt__(self, o): return abs(self) < abs(o)\n"
        "    def __repr__(self): return f'Vector({self.x}, {self.y})'",
        lines(
            "assert Vector(1, 2) + Vector(3, 4) == Vector(4, 6)",
            "assert Vector(1, 2) != Vector(2, 1)",
            "assert abs(Vector(3, 4)) == 5",
            "assert repr(-Vector(1, 2)) == 'Vector(-1, -2)'",
            "assert min(Vector(3, 4), Vector(1, 1)) == Vector(1, 1)",
        ),
    ),
    "a class equal to a tuple": (
        "class Pair:\n    def __init__(self, a, b): self.a, self.b = a, b\n"
        "    def __iter__(self): return iter((self.a, self.b))\n"
        "    def __eq__(self, other): return tuple(self) == tuple(other)\ndef f(a, b): return Pair(b, a)",
        lines("assert f(1, 2) == (2, 1)", "assert tuple(f(1, 2)) == (2, 1)"),
    ),
    "a data class": (
        "from dataclasses import dataclass, field\n@dataclass\nclass Item:\n    name: str\n    tags: list = field(default_factory=list)\n"
        "def f(name, *tags): return Item(name, list(tags))",
        lines(
            "assert f('a', 1) == Item('a', [1])",
            "assert f('a').tags == []",
            "assert f('x').name == 'x'",
            names=["Item", "f"],
        ),
    ),
    "an ordered data class in sets": (
        "from dataclasses import dataclass\n@dataclass(order=True, frozen=True)\nclass V:\n    n: int\ndef f(*ns): return sorted(map(V, ns))",
        lines(
            "assert [v.n for v in f(3, 1, 2)] == [1, 2, 3]",
            "assert f(2, 1) == [V(1), V(2)]",
            "assert V(1) < V(2)",
            names=["V", "f"],
        ),
    ),
    "a linked list": (
        "class Node:\n    def __init__(self, value, next=None): self.value, self.next = value, next\n"
        "def reverse(head):\n    last = None\n    while head: head.next, last, head = last, head, head.next\n    return last",
        lines(
            "n = reverse(Node(1, Node(2, Node(3))))\nassert [n.value, n.next.value, n.next.next.value] == [3, 2, 1]\nassert n.next.next.next is None"
        ),
    ),
    "nested functions": (
        "def f(n):\n    def inner(m): return m * 2\n    def outer(m): return inner(m) + 1\n    return outer(n)",
        check("f", "for n in range(5):\n    assert candidate(n) == 2 * n + 1"),
    ),
    "a closure that tests call": (
        "def counter(start=0):\n    n = start\n    def step(by=1):\n        nonlocal n\n        n += by\n        return n\n    return step",
        lines("c = counter(5)\nassert c() == 6\nassert c(by=10) == 16", "assert counter()() == 1"),
    ),
    "partial functions": (
        "from functools import partial, reduce\ncompose = lambda *fs: partial(reduce, lambda x, f: f(x), fs)",
        lines("assert compose(abs, str)(-5) == '5'"),
    ),
    "changes a list in place": (
        "def f(items):\n    items.sort(reverse=True)\n    items.append(0)",
        lines("a = [1, 3, 2]\nassert f(a) is None\nassert a == [3, 2, 1, 0]", in_place=True),
    ),
    "changes a dict and a set in place": (
        "def f(d, s):\n    for k in list(d):\n        if d[k] in s: s.discard(d.pop(k))\n    return len(d)",
        lines(
            "d, s = {'a': 1, 'b': 2}, {1, 9}\nassert f(d, s) == 1\nassert d == {'b': 2} and s == {9}",
            in_place=["f"],
        ),
    ),
    "changes a matrix in place": (
        "def f(m):\n    for row in m: row.reverse()\n    m.reverse()",
        lines("m = [[1, 2], [3, 4]]\nf(m)\nassert m == [[4, 3], [2, 1]]"),
    ),
    "takes callables": (
        "def f(pred, items, key=None): return sorted(filter(pred, items), key=key)",
        lines(
            "assert f(lambda x: x > 1, [3, 1, 2]) == [2, 3]",
            "assert f(str.isalpha, ['b', '1', 'a'], key=lambda s: -ord(s)) == ['b', 'a']",
        ),
    ),
    "raises its own exception": (
        "class Broken(Exception):\n    def __init__(self, code):\n        super().__init__(f'code {code}')\n        self.code = code\n"
        "def f(n):\n    if n < 0: raise Broken(n)\n    return n",
        lines(
            "try:\n    f(-4)\nexcept Broken as error:\n    assert error.code == -4 and str(error) == 'code -4'\nelse:\n    assert False",
            "assert f(3) == 3",
            names=["Broken", "f"],
        ),
    ),
    "raises a builtin exception": (
        "def f(n):\n    if not isinstance(n, int): raise TypeError('an int is needed')\n    return 10 // n",
        check(
            "f",
            "for bad, kind in ((0, ZeroDivisionError), ('a', TypeError)):\n    try:\n        candidate(bad)\n"
            "    except kind:\n        continue\n    assert False, bad",
            "assert candidate(3) == 3",
        ),
    ),
    "a context manager": (
        "from contextlib import contextmanager\nlog = []\n@contextmanager\ndef tag(name):\n    log.append('<' + name)\n"
        "    yield log\n    log.append(name + '>')",
        lines("with tag('a') as seen:\n    assert seen == ['<a']\nassert log == ['<a', 'a>']"),
    ),
    "global state": (
        "total = 0\ndef f(n):\n    global total\n    total += n\n    return total",
        check("f", "assert candidate(2) == 2", "assert candidate(3) == 5"),
    ),
    "asyncio inside": (
        "import asyncio\nasync def double(n):\n    await asyncio.sleep(0)\n    return 2 * n\n"
        "async def run(items): return await asyncio.gather(*map(double, items))\n"
        "def f(items): return asyncio.run(run(items))",
        lines("assert f([1, 2]) == [2, 4]"),
    ),
    "an async function that tests run": (
        "import asyncio\nasync def f(n):\n    await asyncio.sleep(0)\n    return n + 1",
        lines("import asyncio\nassert asyncio.run(f(1)) == 2"),
    ),
    "walrus, match and positional arguments": (
        "def f(value, /, *, scale=1):\n    match value:\n        case [x, *rest] if (n := len(rest)) > 1: return x * n * scale\n"
        "        case {'k': k}: return k\n        case int() | float(): return -value\n        case _: return None",
        lines(
            "assert f([5, 1, 2], scale=2) == 20",
            "assert f({'k': 'v'}) == 'v'",
            "assert f(3) == -3",
            "assert f('s') is None",
        ),
    ),
    "identifiers of other scripts": (
        "def größe(länge, π=3): return länge * π\nمجموع = größe",
        lines("assert größe(2) == 6", "assert مجموع(1, π=1) == 1", names=["größe", "مجموع"]),
    ),
    "its own sum": (
        "def sum(a, b): return a + b",
        lines("assert sum(2, 3) == 5", "assert sum(0, 0) == 0"),
    ),
    "its own max": (
        "def max(items):\n    best = items[0]\n    for x in items:\n        if x > best: best = x\n    return best",
        lines("assert max([1, 5, 3]) == 5"),
    ),
    "its own set and list": (
        "def set(items): return sorted(dict.fromkeys(items))\ndef list(n): return [n] * n",
        lines("assert set([2, 1, 2]) == [1, 2]", "assert list(2) == [2, 2]"),
    ),
    "imports itself": (
        f"{_SUM}import solution\nassert solution.__name__\ndef twice(a): return solution.add(a, a)\n",
        lines("assert twice(4) == 8"),
    ),
    "Windows line ends": (_SUM.replace("\n", "\r\n"), _ADDS),
    "a mark at its start": ("\ufeff" + _SUM, _ADDS),
    "tabs": (_SUM.replace("    ", "\t"), _ADDS),
    "a coding line and a shebang": (
        f"#!/usr/bin/env python3\n# -*- coding: utf-8 -*-\n{_SUM}",
        _ADDS,
    ),
    "future annotations": (
        f"from __future__ import annotations\n{_SUM}def f(x: Undefined) -> Missing: return x\n",
        _ADDS,
    ),
    "very long lines": (f"TABLE = {list(range(20_000))!r}\n{_SUM}", _ADDS),
    "form feeds and no last newline": ("\f\ndef add(a, b): return a + b  # the end", _ADDS),
    "sort keys": (
        "from functools import cmp_to_key\nfrom operator import itemgetter\n"
        "def f(rows): return sorted(rows, key=itemgetter(1, 0))\n"
        "def g(rows): return sorted(rows, key=cmp_to_key(lambda a, b: (a > b) - (a < b)), reverse=True)",
        lines(
            "assert f([(2, 1), (1, 1), (0, 5)]) == [(1, 1), (2, 1), (0, 5)]",
            "assert g('bca') == ['c', 'b', 'a']",
            names=["f", "g"],
        ),
    ),
    "functions for test functions": (
        f"{_SUM}PI = 3\nclass Error(ValueError): pass\ndef fail(): raise Error('no')\n",
        module(
            "import solution\nfrom solution import add, PI, Error\n\n\ndef test_add():\n    for n in range(3):\n"
            "        assert add(n, PI) == n + 3\n\n\ndef test_error():\n    try:\n        solution.fail()\n"
            "    except Error as error:\n        assert 'no' in str(error)\n    else:\n        assert False\n"
        ),
    ),
    "keyword and default arguments": (
        "def f(a, b=2, *rest, c, d=4, **more): return [a, b, list(rest), c, d, more]",
        {
            "entry_point": "f",
            "cases": [
                {"args": [1], "kwargs": {"c": 3}, "expected": [1, 2, [], 3, 4, {}]},
                {
                    "args": [1, 5, 6],
                    "kwargs": {"c": 3, "e": 7},
                    "expected": [1, 5, [6], 3, 4, {"e": 7}],
                },
            ],
        },
    ),
    "a near result of a case": (
        "import math\ndef f(x): return [math.sin(x), {'c': math.cos(x)}]",
        cases("f", ([1.0], [0.841471, {"c": 0.540302}]), abs_tol=1e-5),
    ),
    "a program with spaces at line ends": (
        "n = int(input())\nfor i in range(n): print(*range(i + 1), end=' \\n')",
        program(("3\n", "0\n0 1\n0 1 2\n"), ("1", "0")),
    ),
    "a program that reads by lines": (
        "import sys\nfor line in sys.stdin:\n    a, b = map(int, line.split())\n    print(a + b)",
        program(("1 2\n3 4\n", "3\n7\n"), ("", "")),
    ),
    "a program with a main block that exits": (
        "import sys\ndef main():\n    data = sys.stdin.buffer.read().split()\n    sys.stdout.write(str(len(data)))\n"
        "if __name__ == '__main__':\n    main()\n    sys.exit(0)",
        program(("a b\nc", "3"), ("", "0\n")),
    ),
    "a program with a large recursion in a thread": (
        "import sys, threading\nsys.setrecursionlimit(1 << 20)\nthreading.stack_size(1 << 26)\n"
        "def depth(n): return 0 if n == 0 else 1 + depth(n - 1)\n"
        "def main(): print(depth(int(input())))\nt = threading.Thread(target=main)\nt.start()\nt.join()",
        program(("30000\n", "30000\n")),
    ),
    "a program in Windows line ends": (
        "name = input()\r\nprint('Hello, ' + name)\r\n",
        program(("J\u00f6rg\n", "Hello, J\u00f6rg\n")),
    ),
}

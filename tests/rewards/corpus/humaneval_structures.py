"""Problems in HumanEval's shape about data: in place, nested, callables, objects, generators."""

from tests.rewards.corpus.problem import Problem

PROBLEMS = (
    Problem(
        "rotate",
        '''def rotate(items: list, steps: int) -> None:
    """Rotate the list in place, to the right. Returns nothing."""
''',
        """    if items:
        steps %= len(items)
        items[:] = items[-steps:] + items[:-steps] if steps else items[:]
""",
        """def check(candidate):
    items = [1, 2, 3, 4, 5]
    assert candidate(items, 2) is None
    assert items == [4, 5, 1, 2, 3]
    same = items
    candidate(items, -2)
    assert same is items and same == [1, 2, 3, 4, 5]
    empty = []
    candidate(empty, 3)
    assert empty == []
    for steps in range(12):
        items = list(range(5))
        candidate(items, steps)
        assert items == [(i - steps) % 5 for i in range(5)]
""",
        (
            "    return items[-steps:] + items[:-steps]\n",
            "    items.insert(0, items.pop()) if items else None\n",
        ),
    ),
    Problem(
        "group_by",
        '''from typing import Any, Callable, Dict, Iterable, List


def group_by(key: Callable[[Any], Any], items: Iterable[Any]) -> Dict[Any, List[Any]]:
    """The items in lists by their key, in their order."""
''',
        """    groups = {}
    for item in items:
        groups.setdefault(key(item), []).append(item)
    return groups
""",
        """def check(candidate):
    assert candidate(len, ["a", "bb", "c"]) == {1: ["a", "c"], 2: ["bb"]}
    assert candidate(lambda n: n % 3, range(7)) == {0: [0, 3, 6], 1: [1, 4], 2: [2, 5]}
    calls = []

    def key(item):
        calls.append(item)
        return (item > 0, str(item))

    result = candidate(key, [5, -5, 5])
    assert result == {(True, "5"): [5, 5], (False, "-5"): [-5]}
    assert calls == [5, -5, 5]
    assert list(result) == [(True, "5"), (False, "-5")]
""",
        (
            "    return {key(item): [item] for item in items}\n",
            "    items = sorted(items, key=str)\n    return {key(i): [j for j in items if key(j) == key(i)] for i in items}\n",
        ),
    ),
    Problem(
        "flatten",
        '''def flatten(value):
    """All that is in nested lists and tuples, in order, as a flat list. Texts stay whole."""
''',
        """    if isinstance(value, (list, tuple)):
        return [each for part in value for each in flatten(part)]
    return [value]
""",
        """def check(candidate):
    assert candidate([1, [2, (3, [4])], []]) == [1, 2, 3, 4]
    assert candidate(["ab", ("cd",)]) == ["ab", "cd"]
    assert candidate(5) == [5]
    assert candidate([None, [True, [0.5]]]) == [None, True, 0.5]
    deep = 1
    for _ in range(40):
        deep = [deep, 2]
    assert candidate(deep) == [1] + [2] * 40
""",
        (
            "    return [each for part in value for each in part] if isinstance(value, list) else [value]\n",
            "    return sum(([x] if not isinstance(x, list) else x for x in value), [])\n",
        ),
    ),
    Problem(
        "merge_counts",
        '''def merge_counts(target: dict, *others: dict) -> dict:
    """Add the counts of the others to target, in place, and return it. Counts of 0 go."""
''',
        """    for other in others:
        for key, count in other.items():
            target[key] = target.get(key, 0) + count
    for key in [key for key, count in target.items() if count == 0]:
        del target[key]
    return target
""",
        """def check(candidate):
    target = {"a": 1}
    extra = {"a": 2, (1, 2): 5}
    result = candidate(target, extra, {"a": -3})
    assert result == {(1, 2): 5}
    assert target == {(1, 2): 5}
    assert extra == {"a": 2, (1, 2): 5}
    other = {1: 1, 2: 2}
    candidate(other)
    assert other == {1: 1, 2: 2}
    assert sorted(candidate({}, {3: 1}, {1: 1})) == [1, 3]
""",
        (
            "    for other in others:\n        target.update(other)\n    return target\n",
            """    result = dict(target)
    for other in others:
        for key in other: result[key] = result.get(key, 0) + other[key]
    return {key: count for key, count in result.items() if count}
""",
        ),
    ),
    Problem(
        "retrying",
        '''def retrying(function, attempts: int):
    """Call it until it raises no ValueError; after so many attempts let the last one pass."""
''',
        """    for left in reversed(range(attempts)):
        try:
            return function()
        except ValueError:
            if not left:
                raise
""",
        """def check(candidate):
    tries = []

    def third():
        tries.append(1)
        if len(tries) < 3:
            raise ValueError("not yet")
        return "done"

    assert candidate(third, 5) == "done"
    assert len(tries) == 3

    def never():
        tries.append(1)
        raise ValueError("never")

    del tries[:]
    try:
        candidate(never, 4)
        assert False, "no error came"
    except ValueError as error:
        assert "never" in str(error)
    assert len(tries) == 4

    def other():
        tries.append(1)
        raise KeyError("k")

    del tries[:]
    try:
        candidate(other, 4)
    except KeyError:
        tries.append("seen")
    assert tries == [1, "seen"]
""",
        (
            """    for _ in range(attempts):
        try: return function()
        except Exception: pass
""",
            "    return function()\n",
        ),
    ),
    Problem(
        "window",
        '''def window(items, size: int):
    """A generator of tuples of `size` neighbours. ValueError for size < 1, at the call."""
''',
        """    if size < 1:
        raise ValueError("size")
    items = list(items)
    return (tuple(items[i:i + size]) for i in range(len(items) - size + 1))
""",
        """def check(candidate):
    assert list(candidate([1, 2, 3, 4], 2)) == [(1, 2), (2, 3), (3, 4)]
    assert list(candidate("abc", 3)) == [("a", "b", "c")]
    assert list(candidate([], 1)) == []
    total = 0
    for left, right in candidate(range(100), 2):
        assert right - left == 1
        total += left
    assert total == sum(range(99))
    for size in (0, -1):
        try:
            candidate([1], size)
        except ValueError:
            continue
        assert False
""",
        (
            "    return (tuple(items[i:i + size]) for i in range(0, len(items), size))\n",
            "    return [list(items[i:i + size]) for i in range(len(items) - size + 1)]\n",
        ),
    ),
    Problem(
        "topological",
        '''from typing import Dict, List


def topological(needs: Dict[str, List[str]]) -> List[str]:
    """The keys such that each comes after what it needs. ValueError where that cannot be."""
''',
        """    order, doing = [], set()
    def visit(name):
        if name in order: return
        if name in doing: raise ValueError("cycle")
        doing.add(name)
        for each in needs.get(name, []): visit(each)
        order.append(name)
    for name in needs: visit(name)
    return order
""",
        """import random


def valid(order, needs):
    place = {name: index for index, name in enumerate(order)}
    assert len(place) == len(order)
    return all(place[each] < place[name] for name in needs for each in needs[name])


def check(candidate):
    assert candidate({}) == []
    assert candidate({"a": ["b"], "b": ["c"], "c": []}) == ["c", "b", "a"]
    for _ in range(20):
        names = ["n%d" % n for n in range(12)]
        needs = {name: random.sample(names[:i], min(i, 3)) for i, name in enumerate(names)}
        shuffled = list(needs.items())
        random.shuffle(shuffled)
        assert valid(candidate(dict(shuffled)), needs)
    try:
        candidate({"a": ["b"], "b": ["a"]})
    except ValueError:
        return
    raise AssertionError("a cycle was accepted")
""",
        (
            "    return sorted(needs, key=lambda name: len(needs[name]))\n",
            "    return list(reversed(list(needs)))\n",
        ),
    ),
    Problem(
        "Account",
        '''class Account:
    """An account: deposit(amount), withdraw(amount), balance. It does not go below 0: ValueError."""

''',
        """    def __init__(self, balance=0):
        self._balance = balance
        self.log = []

    @property
    def balance(self):
        return self._balance

    def deposit(self, amount):
        self._balance += amount
        self.log.append(amount)
        return self

    def withdraw(self, amount):
        if amount > self._balance:
            raise ValueError("too much")
        return self.deposit(-amount)
""",
        """def check(candidate):
    account = candidate()
    assert account.balance == 0
    account.deposit(10).withdraw(4)
    assert account.balance == 6
    try:
        account.withdraw(7)
    except ValueError:
        pass
    else:
        assert False
    assert account.balance == 6
    other = candidate(5)
    assert [account.balance, other.balance] == [6, 5]
    assert account.log == [10, -4]
""",
        (
            """    def __init__(self, balance=0): self.balance, self.log = balance, []
    def deposit(self, amount):
        self.balance += amount
        self.log.append(amount)
        return self
    def withdraw(self, amount): return self.deposit(-amount)
""",
            """    balance, log = 0, []
    def __init__(self, balance=0): Account.balance = balance
    def deposit(self, amount): Account.balance += amount; return self
    def withdraw(self, amount): raise ValueError
""",
        ),
    ),
    Problem(
        "memoized",
        '''def memoized(function):
    """The same function, which is called once for each arguments."""
''',
        """    known = {}
    def inner(*args):
        if args not in known:
            known[args] = function(*args)
        return known[args]
    return inner
""",
        """def check(candidate):
    calls = []

    def slow(a, b=0):
        calls.append((a, b))
        return a * 10 + b

    fast = candidate(slow)
    assert [fast(1), fast(1), fast(2, 3), fast(2, 3)] == [10, 10, 23, 23]
    assert calls == [(1, 0), (2, 3)]
    again = candidate(slow)
    assert again(1) == 10
    assert len(calls) == 3
""",
        (
            "    return function\n",
            "    first = []\n    def inner(*args):\n        if not first: first.append(function(*args))\n        return first[0]\n    return inner\n",
        ),
    ),
    Problem(
        "top_words",
        '''def top_words(text: str, count: int):
    """The most frequent words with their counts, as (word, count), ties in alphabetical order."""
''',
        """    from collections import Counter
    words = Counter(text.lower().split())
    return sorted(words.items(), key=lambda pair: (-pair[1], pair[0]))[:count]
""",
        """def check(candidate):
    text = "the cat and the dog and THE bird"
    assert candidate(text, 2) == [("the", 3), ("and", 2)]
    assert candidate(text, 4)[2:] == [("bird", 1), ("cat", 1)]
    assert candidate("", 3) == []
    for count in range(5):
        result = candidate(text, count)
        assert len(result) == count
        assert all(isinstance(word, str) and n > 0 for word, n in result)
    assert dict(candidate("a b a", 9)) == {"a": 2, "b": 1}
""",
        (
            "    from collections import Counter\n    return Counter(text.split()).most_common(count)\n",
            "    return sorted({w: text.count(w) for w in text.split()}.items())[:count]\n",
        ),
    ),
    Problem(
        "transpose",
        '''def transpose(rows):
    """Turn rows into columns; short rows are filled with None."""
''',
        """    width = max(map(len, rows), default=0)
    return [[row[i] if i < len(row) else None for row in rows] for i in range(width)]
""",
        """def check(candidate):
    assert candidate([]) == []
    assert candidate([[1, 2], [3, 4]]) == [[1, 3], [2, 4]]
    assert candidate([[1], [2, 3]]) == [[1, 2], [None, 3]]
    assert candidate([(1, "a"), (2, "b")]) == [[1, 2], ["a", "b"]]
    rows = [[i * j for j in range(7)] for i in range(4)]
    assert candidate(candidate(rows)) == rows
    assert rows[1] == [0, 1, 2, 3, 4, 5, 6]
""",
        (
            "    return [list(column) for column in zip(*rows)]\n",
            "    return [row[::-1] for row in rows]\n",
        ),
    ),
    Problem(
        "apply_all",
        '''def apply_all(functions, value):
    """Pipe the value through the functions, from the first to the last."""
''',
        """    for function in functions:
        value = function(value)
    return value
""",
        """import operator


def check(candidate):
    assert candidate([], 5) == 5
    assert candidate([lambda x: x + 1, lambda x: x * 10], 4) == 50
    assert candidate([str, len], 12345) == 5
    assert candidate([operator.neg] * 3, 2) == -2
    order = []
    steps = [lambda x, n=n: order.append(n) or x + n for n in range(5)]
    assert candidate(steps, 0) == 10
    assert order == [0, 1, 2, 3, 4]
    assert candidate((f for f in [abs]), -3) == 3
""",
        (
            "    for function in reversed(list(functions)):\n        value = function(value)\n    return value\n",
            "    return [function(value) for function in functions][-1]\n",
        ),
    ),
    Problem(
        "diff",
        '''def diff(old: dict, new: dict):
    """A dict of the sets of keys "added", "removed" and "changed"."""
''',
        """    return {
        "added": set(new) - set(old),
        "removed": set(old) - set(new),
        "changed": {key for key in old if key in new and old[key] != new[key]},
    }
""",
        """def check(candidate):
    result = candidate({"a": 1, "b": [1], "c": 0}, {"b": [2], "c": 0, "d": 4})
    assert set(result) == {"added", "removed", "changed"}
    assert result["added"] == {"d"}
    assert result["removed"] == {"a"}
    assert result["changed"] == {"b"}
    assert not any(candidate({}, {}).values())
    assert candidate({1: None}, {1: False})["changed"] == {1}
    assert candidate({frozenset([1]): 1}, {}) == {
        "added": set(), "removed": {frozenset([1])}, "changed": set()
    }
""",
        (
            """    return {"added": set(new) - set(old), "removed": set(old) - set(new), "changed": set()}
""",
            """    return {"added": list(new), "removed": list(old), "changed": [k for k in old if k in new]}
""",
        ),
    ),
    Problem(
        "sort_rows",
        '''def sort_rows(rows, *columns) -> None:
    """Sort a list of dicts in place by columns; one that begins with "-" is sorted downwards."""
''',
        """    for column in reversed(columns):
        rows.sort(key=lambda row: row[column.lstrip("-")], reverse=column.startswith("-"))
""",
        """import random


def check(candidate):
    rows = [{"n": 2, "s": "b"}, {"n": 1, "s": "b"}, {"n": 2, "s": "a"}]
    candidate(rows, "s", "-n")
    assert rows == [{"n": 2, "s": "a"}, {"n": 2, "s": "b"}, {"n": 1, "s": "b"}]
    many = [{"n": random.randint(0, 9), "i": i} for i in range(60)]
    want = sorted(many, key=lambda row: -row["n"])
    assert candidate(many, "-n") is None
    assert many == want
""",
        (
            "    rows.sort(key=lambda row: [row[c.lstrip('-')] for c in columns])\n",
            "    return sorted(rows, key=lambda row: str(row))\n",
        ),
    ),
    Problem(
        "bits",
        '''def bits(data: bytearray, flip: int = -1):
    """An iterator of the bits, highest first. Before, flips the bit number `flip` in place."""
''',
        """    if flip >= 0:
        data[flip // 8] ^= 128 >> flip % 8
    return iter([byte >> shift & 1 for byte in data for shift in range(7, -1, -1)])
""",
        """def check(candidate):
    data = bytearray(b"\\x01\\x80")
    assert list(candidate(data)) == [0] * 7 + [1, 1] + [0] * 7
    candidate(data, 0)
    assert data == bytearray(b"\\x81\\x80")
    assert sum(candidate(data, flip=15)) == 4
    assert data[1] == 0x81
    stream = candidate(bytearray(b"\\xf0"))
    assert [next(stream) for _ in range(4)] == [1, 1, 1, 1]
    assert max(stream) == 0
""",
        (
            "    return iter([byte >> shift & 1 for byte in data for shift in range(8)])\n",
            "    data = bytearray(data)\n    return iter([byte >> shift & 1 for byte in data for shift in range(7, -1, -1)])\n",
        ),
    ),
)

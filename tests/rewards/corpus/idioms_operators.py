"""Idioms of tests that apply operators and builtins to objects of the submission."""

from tests.rewards.corpus.idiom import Idiom, check, functions

_VECTOR = """
class V:
    def __init__(self, x, y=0): self.x, self.y = x, y
    def __add__(self, other): return V(self.x + other.x, self.y + other.y)
    def __mul__(self, k): return V(self.x * k, self.y * k)
    __rmul__ = __mul__
    def __eq__(self, other): return isinstance(other, V) and (self.x, self.y) == (other.x, other.y)
    def __hash__(self): return hash((self.x, self.y))
    def __repr__(self): return f"V({self.x}, {self.y})"
"""
_LIST = """
class Stack:
    def __init__(self, items=()): self._items = list(items)
    def push(self, item): self._items.append(item)
    def __len__(self): return len(self._items)
    def __getitem__(self, index): return self._items[index]
    def __setitem__(self, index, value): self._items[index] = value
    def __delitem__(self, index): del self._items[index]
    def __contains__(self, item): return item in self._items
    def __iter__(self): return iter(self._items)
    def __bool__(self): return bool(self._items)
"""

OPERATORS: dict[str, Idiom] = {
    "augmented assignment": functions(
        """
        from solution import V

        def test_iadd():
            a = V(1)
            a += V(2)
            assert a.x == 3
            total = V(0, 0)
            for each in [V(1, 2), V(3, 4)]:
                total += each
            assert (total.x, total.y) == (4, 6)
        """,
        _VECTOR,
        _VECTOR.replace("self.x + other.x", "self.x"),
    ),
    "a product with a number": functions(
        """
        from solution import V

        def test_mul():
            product = V(2, 1) * 3
            assert (product.x, product.y) == (6, 3)
            assert V(2, 1) * 3 == V(6, 3)

        def test_rmul():
            assert 3 * V(2, 1) == V(6, 3)
        """,
        _VECTOR,
        _VECTOR.replace("V(self.x * k, self.y * k)", "V(self.x * k, self.y)"),
    ),
    "equality and hashes in sets": functions(
        """
        from solution import V

        def test_set():
            assert len({V(1, 2), V(1, 2), V(2, 1)}) == 2
            assert V(1, 2) in [V(0, 0), V(1, 2)]
            assert hash(V(1, 2)) == hash(V(1, 2))

        def test_other_types():
            assert V(1, 2) != (1, 2)
            assert not V(1, 2) == "V(1, 2)"
            assert {V(1, 2): "a"}[V(1, 2)] == "a"
        """,
        _VECTOR,
        _VECTOR.replace(
            "    def __hash__(self): return hash((self.x, self.y))",
            "    __hash__ = object.__hash__",
        ),
    ),
    "repr, str and format": functions(
        """
        from solution import Money

        def test_texts():
            money = Money(3.5, "EUR")
            assert repr(money) == "Money(3.5, 'EUR')"
            assert str(money) == "3.50 EUR"
            assert f"{money:.1f}" == "3.5 EUR"
            assert "{} and {!r}".format(money, money) == "3.50 EUR and Money(3.5, 'EUR')"
        """,
        """
        class Money:
            def __init__(self, amount, currency): self.amount, self.currency = amount, currency
            def __repr__(self): return f"Money({self.amount!r}, {self.currency!r})"
            def __format__(self, form): return f"{self.amount:{form or '.2f'}} {self.currency}"
            def __str__(self): return format(self)
        """,
        """
        class Money:
            def __init__(self, amount, currency): self.amount, self.currency = amount, currency
            def __repr__(self): return f"Money({self.amount!r}, {self.currency!r})"
        """,
    ),
    "objects of the tests with an order": functions(
        """
        from solution import ranked

        class Job:
            def __init__(self, name, priority):
                self.name, self.priority = name, priority
            def __lt__(self, other):
                return self.priority < other.priority
            def __repr__(self):
                return f"Job({self.name})"

        def test_sorted():
            jobs = [Job("c", 3), Job("a", 1), Job("b", 2)]
            assert [job.name for job in ranked(jobs)] == ["a", "b", "c"]
            assert ranked(jobs)[0] is jobs[1]
        """,
        "def ranked(items): return sorted(items)",
        "def ranked(items): return list(items)",
    ),
    "total ordering": functions(
        """
        from solution import Version

        def test_order():
            assert Version("1.2") < Version("1.10")
            assert Version("2.0") >= Version("1.99")
            assert Version("1.0") == Version("1.0")
            assert max([Version("1.9"), Version("1.10")]).text == "1.10"

        def test_sorted():
            found = sorted([Version("1.10"), Version("1.2"), Version("1.9")])
            assert [version.text for version in found] == ["1.2", "1.9", "1.10"]
        """,
        """
        from functools import total_ordering
        @total_ordering
        class Version:
            def __init__(self, text): self.text, self.parts = text, tuple(map(int, text.split(".")))
            def __eq__(self, other): return self.parts == other.parts
            def __lt__(self, other): return self.parts < other.parts
        """,
        """
        from functools import total_ordering
        @total_ordering
        class Version:
            def __init__(self, text): self.text = text
            def __eq__(self, other): return self.text == other.text
            def __lt__(self, other): return self.text < other.text
        """,
    ),
    "a container": functions(
        """
        from solution import Stack

        def test_container():
            stack = Stack([1, 2, 3])
            stack.push(4)
            assert len(stack) == 4
            assert stack[0] == 1 and stack[-1] == 4 and stack[1:3] == [2, 3]
            assert 3 in stack and 9 not in stack
            stack[0] = 7
            del stack[1]
            assert list(stack) == [7, 3, 4]

        def test_empty():
            assert not Stack()
            try:
                Stack()[0]
            except IndexError:
                return
            assert False
        """,
        _LIST,
        _LIST.replace("self._items.append(item)", "self._items.insert(0, item)"),
    ),
    "an iterator class": functions(
        """
        from solution import Countdown

        def test_iterator():
            countdown = Countdown(3)
            assert iter(countdown) is countdown
            assert next(countdown) == 3
            assert list(countdown) == [2, 1]
            try:
                next(countdown)
            except StopIteration:
                pass
            else:
                assert False, "no StopIteration"
            assert next(countdown, "end") == "end"
            assert sum(Countdown(4)) == 10
        """,
        """
        class Countdown:
            def __init__(self, n): self.n = n
            def __iter__(self): return self
            def __next__(self):
                if self.n <= 0: raise StopIteration
                self.n -= 1
                return self.n + 1
        """,
        """
        class Countdown:
            def __init__(self, n): self.n = n
            def __iter__(self): return iter(range(self.n, 0, -1))
            def __next__(self): return self.n
        """,
    ),
    "generators": check(
        "averages",
        """
        running = candidate()
        assert next(running) is None
        assert running.send(10) == 10
        assert running.send(20) == 15
        running.close()
        try:
            next(running)
        except StopIteration:
            pass
        else:
            assert False, "a closed generator went on"
        """,
        """
        def averages():
            total, count, average = 0, 0, None
            while True:
                total += yield average
                count += 1
                average = total / count
        """,
        """
        def averages():
            value = None
            while True: value = yield value
        """,
    ),
    "a generator without end": check(
        "fibonacci",
        """
        import itertools
        import types
        assert isinstance(candidate(), types.GeneratorType)
        assert list(itertools.islice(candidate(), 7)) == [0, 1, 1, 2, 3, 5, 8]
        assert [n for n, _ in zip(candidate(), range(3))] == [0, 1, 1]
        """,
        """
        def fibonacci():
            a, b = 0, 1
            while True:
                yield a
                a, b = b, a + b
        """,
        "def fibonacci(): yield from [0, 1, 1, 2, 3, 5, 9]",
    ),
    "a copy of a result": check(
        "grid",
        """
        import copy
        first = candidate(2, 3)
        before = copy.deepcopy(first)
        first[0][0] = 5
        assert before == [[0, 0, 0], [0, 0, 0]]
        assert first[1][0] == 0, "the rows are one list"
        assert candidate(2, 3) == before
        """,
        "def grid(rows, columns): return [[0] * columns for _ in range(rows)]",
        "def grid(rows, columns): return [[0] * columns] * rows",
    ),
    "a copy of an object": functions(
        """
        import copy
        from solution import Config

        def test_deepcopy():
            config = Config({"a": [1]})
            other = copy.deepcopy(config)
            other.values["a"].append(2)
            assert config.values == {"a": [1]}
            assert other.values == {"a": [1, 2]}
            assert other is not config and other.same(Config({"a": [1, 2]}))
        """,
        """
        class Config:
            def __init__(self, values): self.values = values
            def same(self, other): return self.values == other.values
        """,
        """
        class Config:
            def __init__(self, values): self.values = values
            def __deepcopy__(self, memo): return Config(self.values)
            def same(self, other): return self.values == other.values
        """,
    ),
    "objects that are called": functions(
        """
        from solution import Polynomial

        def test_call():
            square = Polynomial(0, 0, 1)
            assert callable(square)
            assert square(3) == 9
            assert list(map(square, [1, 2, 3])) == [1, 4, 9]
            assert Polynomial(1, 2)(10) == 21
        """,
        """
        class Polynomial:
            def __init__(self, *factors): self.factors = factors
            def __call__(self, x): return sum(k * x ** n for n, k in enumerate(self.factors))
        """,
        """
        class Polynomial:
            def __init__(self, *factors): self.factors = factors
            def __call__(self, x): return sum(k * x for k in self.factors)
        """,
    ),
    "an ordered dict and a counter": check(
        "tally",
        """
        from collections import Counter
        found = candidate("abca")
        assert isinstance(found, Counter)
        assert isinstance(found, dict)
        assert found["a"] == 2 and found["z"] == 0
        assert found.most_common(1) == [("a", 2)]
        """,
        "from collections import Counter\ndef tally(text): return Counter(text)",
        "def tally(text): return {each: text.count(each) for each in text}",
    ),
}

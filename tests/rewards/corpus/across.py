"""What tests in one sandbox see of a submission in another: as in one process, and no way to cheat."""

SUBMISSION = """
import asyncio, collections, dataclasses, enum, math, random

LIMIT = 7
class Broke(LookupError, ValueError):
    def __str__(self): return f"Broke: {self.args[0]}"
def take(account, n):
    account["a"] -= n
    if account["a"] < 0: raise Broke(account["a"])
def count(seen, key): seen[key] = seen.get(key, 0) + 1
def meets(first, second):
    seen = set()
    while first is not None and first not in seen:
        seen.add(first)
        first = first.next
    while second is not None and second not in seen:
        second = second.next
    return second
def named_function(function):
    "Its name."
    return function.__name__
class Stack:
    def __init__(self): self.items = []
    def push(self, item): self.items.append(item)
    def pop(self): return self.items.pop()
    def __len__(self): return len(self.items)
    def __iter__(self): return iter(self.items)
    def __enter__(self): return self
    def __exit__(self, *exc): self.items.clear()
class Handling:
    def __init__(self, kind): self.kind, self.seen = kind, []
    def __enter__(self): return self
    def __exit__(self, kind, error, trace):
        self.seen.append(f"{kind.__name__}: {error}")
        return issubclass(kind, self.kind)
class Empty(LookupError):
    def __init__(self, name): super().__init__(name); self.name = name
class Vector:
    def __init__(self, x, y): self.x, self.y = x, y
    def __add__(self, other): return Vector(self.x + other.x, self.y + other.y)
    def __mul__(self, k): return Vector(self.x * k, self.y * k)
    def __eq__(self, other): return (self.x, self.y) == (other.x, other.y)
    def __hash__(self): return hash((self.x, self.y))
class Color(enum.Enum):
    RED = 1
    GREEN = 2
class Numbers(list):
    def total(self): return sum(self)
Point = collections.namedtuple("Point", "x y")

def apply(function, items): return [function(item) for item in items]
def fail(name): raise Empty(name)
def sort_in_place(items): items.sort()
def grow(items, *, by): by.append(len(items))
def upto(n): yield from range(n)
def first(n): return next(n)
def point(): return Point(1, 2)
def numbers(): return Numbers([1, 2, 3])
def adder(n): return lambda m: n + m
def color(): return Color.RED
def named(node): return node.name.upper() + str(node.next.name)
async def later(n): await asyncio.sleep(0); return n + 1
def views(d): return d.items()
def twice(function): return function
def nested(n):
    value = []
    for _ in range(n): value = [value]
    return value
"""

BEHAVIOURS = {
    "plain data keeps its types": """
        from solution import twice
        for value in (1, True, None, 1.5, "a", b"b", (1, (2,)), {1: {2}}, frozenset([3]), 1j):
            assert twice(value) == value and type(twice(value)) is type(value)
    """,
    "objects stay where they are": """
        from solution import Stack
        stack = Stack()
        stack.push(1); stack.push((2, 3))
        assert len(stack) == 2 and list(stack) == [1, (2, 3)] and stack.pop() == (2, 3)
        assert stack.items == [1] and isinstance(stack, Stack) and not isinstance(3, Stack)
        with stack as same:
            assert same is stack
        assert not stack.items
    """,
    "exceptions keep class, text, arguments and attributes": """
        import solution
        try:
            solution.fail("x")
        except solution.Empty as error:
            assert isinstance(error, LookupError)
            assert (str(error), error.args, error.name) == ("x", ("x",), "x")
        else:
            raise AssertionError
        try:
            solution.upto()
        except TypeError as error:
            assert "positional" in str(error)
    """,
    "arguments are changed in place": """
        from solution import sort_in_place, grow
        items, sizes = [3, 1, 2], []
        sort_in_place(items)
        grow(items, by=sizes)
        assert (items, sizes) == ([1, 2, 3], [3])
    """,
    "callables of the tests are called back": """
        import math, operator
        from solution import apply, twice
        seen = []
        def note(x):
            seen.append(x)
            return x + 1
        assert apply(note, [1, 2]) == [2, 3] and seen == [1, 2]
        assert apply(math.sqrt, [4]) == [2.0] and apply(str.upper, ["a"]) == ["A"]
        assert apply(int, ["7"]) == [7] and twice(note) is note
        def broken(x): raise KeyError(x)
        try:
            apply(broken, ["k"])
        except KeyError:
            pass
        else:
            raise AssertionError
    """,
    "callables of the submission are called": """
        from solution import adder, apply
        assert adder(2)(3) == 5 and apply(adder(1), [1]) == [2]
    """,
    "iterators go either way": """
        from solution import first, upto
        assert list(upto(3)) == [0, 1, 2] and next(upto(1)) == 0 and first(iter([7])) == 7
        assert sum(upto(4)) == 6 and sorted(upto(2), reverse=True) == [1, 0] and 3 in upto(5)
    """,
    "classes of the submission that are plain data, too": """
        from solution import numbers, point
        assert point() == (1, 2) and point().x == 1 and tuple(point()) == (1, 2)
        assert numbers() == [1, 2, 3] and numbers().total() == 6 and len(numbers()) == 3
        x, y = point()
        assert [x, y] == [1, 2]
    """,
    "members of an enumeration are themselves": """
        from solution import Color, color
        assert color() is Color.RED and color() == Color.RED and color() != Color.GREEN
        assert color().name == "RED" and color().value == 1
    """,
    "a context manager that handles what the tests raise": """
        from solution import Handling
        with Handling(ValueError) as handling:
            raise ValueError("x")
        assert handling.seen == ["ValueError: x"]
        try:
            with Handling(ValueError):
                raise KeyError("y")
        except KeyError:
            pass
        else:
            raise AssertionError
    """,
    "classes of the tests may be data classes": """
        import dataclasses
        from solution import twice
        @dataclasses.dataclass
        class Pair:
            left: int
            right: int
        pair = Pair(1, 2)
        assert twice(pair) is pair and twice(Pair) is Pair
    """,
    "what was changed before an exception is changed": """
        from solution import take
        account = {"a": 1}
        try:
            take(account, 5)
        except ValueError as error:
            assert str(error) == "Broke: -4" and isinstance(error, LookupError)
        else:
            raise AssertionError
        assert account == {"a": -4}
    """,
    "subclasses of containers as arguments": """
        import collections
        from solution import sort_in_place, count
        class Sorted(list): pass
        items, seen = Sorted([2, 1]), collections.defaultdict(int)
        sort_in_place(items)
        count(seen, "a")
        assert items == [1, 2] and type(items) is Sorted and seen == {"a": 1} and seen["b"] == 0
    """,
    "objects of the tests keep their identity": """
        from solution import meets
        class Node:
            def __init__(self, next=None): self.next = next
        tail = Node()
        first, second = Node(Node(tail)), Node(tail)
        assert meets(first, second) is tail
        first.next.next = first
        assert meets(first, second) is None
    """,
    "equal objects of the submission are one in a set": """
        from solution import Vector
        assert len({Vector(1, 2), Vector(1, 2), Vector(2, 1)}) == 2
    """,
    "functions have names": """
        from solution import named_function, numbers
        def callback(): pass
        assert named_function(callback) == "callback" and named_function.__name__ == "named_function"
        assert named_function.__doc__ == "Its name."
    """,
    "star imports bring no modules": """
        from solution import *
        import random, math
        random.seed(3)
        assert random.random() == random.Random(3).random() and math.pi > 3
    """,
    "operators between objects of the submission": """
        from solution import Vector
        assert Vector(1, 2) + Vector(3, 4) == Vector(4, 6)
        assert Vector(1, 2) != Vector(1, 3) and (Vector(1, 2) + Vector(0, 0)).x == 1
    """,
    "constants and star imports": """
        from solution import *
        assert LIMIT == 7 and upto and abs(-1) == 1
    """,
    "objects of the tests are seen by their public attributes": """
        from solution import named
        class Node:
            def __init__(self, name, next=None):
                self.name, self.next, self._secret = name, next, 1
        assert named(Node("a", Node("b"))) == "Ab"
    """,
    "coroutines": """
        import asyncio
        from solution import later
        async def both(): return await asyncio.gather(later(1), later(2))
        assert asyncio.run(later(1)) == 2 and asyncio.run(both()) == [2, 3]
    """,
    "views of dicts": """
        from solution import views
        assert views({1: 2}) == {(1, 2)} and list(views({1: 2})) == [(1, 2)]
    """,
    "deep values": """
        from solution import nested
        value, depth = nested(120), 0
        while value: value, depth = value[0], depth + 1
        assert depth == 120
    """,
}

IN_PLACE = {
    "arguments are changed in place",
    "what was changed before an exception is changed",
    "subclasses of containers as arguments",
}
"""Behaviours that need a task's `in_place`."""

HOSTILE = {
    "an operator with plain data is not the submission's": (
        "class Near:\n"
        "    def __sub__(self, other): return 0\n"
        "    __rsub__ = __lt__ = __gt__ = __le__ = __eq__ = __sub__\n"
        "    def __abs__(self): return 0\n"
        "def f(): return Near()",
        "from solution import f\ndef test(): assert abs(f() - 5) < 1",
    ),
    "a test that catches everything does not pass without a submission": (
        "raise SystemExit(3)",
        "def test():\n    try:\n        from solution import f\n        f()\n    except: pass",
    ),
    "names of the submission do not replace builtins or modules": (
        "abs = lambda x: 0\nlen = lambda x: 3\ndef f(): return 7",
        "from solution import *\nfrom solution import f\ndef test(): assert abs(f() - 3) < 1",
    ),
    "what the tests handed over shows no insides": (
        "def f(function): return function.__globals__['ANSWER'] + function.ANSWER",
        "from solution import f\nANSWER = 5\ndef test(): assert f(lambda: 1) == ANSWER",
    ),
    "an iterator shows no frame": (
        "def f(items): return items.gi_frame.f_locals['answer']",
        "from solution import f\ndef test():\n    answer = 5\n    assert f(x for x in [answer]) == 5",
    ),
    "a forged answer that is no value": (
        "import os\nfor fd in range(3, 30):\n"
        "    try: os.write(fd, b'[\"verdict\", 1]\\n')\n    except OSError: pass\n"
        "def f(): return 5",
        "from solution import f\ndef test(): assert f() == 5",
    ),
    "an exception does not end the tests well": (
        "def f(): raise SystemExit(0)",
        "from solution import f\ndef test(): assert f() == 5",
    ),
    "an object whose text ends the tests": (
        "class Odd:\n    def __str__(self): raise SystemExit(127)\n    __repr__ = __str__\n"
        "def f(): return Odd()",
        "from solution import f\ndef test():\n    r = f()\n    assert r == 9, r",
    ),
    "an exception whose text ends the tests": (
        "class Odd(Exception):\n    def __str__(self): raise SystemExit(0)\n"
        "def f(): raise Odd(Odd())",
        "from solution import f\ndef test(): assert f() == 9",
    ),
    "an event that never comes": (
        "def f(done): pass",
        "import threading\nfrom solution import f\ndef test():\n"
        "    done = threading.Event()\n    f(done.set)\n    assert done.wait()",
    ),
    "a thread that still asks when the tests have failed": (
        "import time\ndef f(): time.sleep(1)",
        "import threading\nfrom solution import f\ndef test():\n    got = []\n"
        "    t = threading.Thread(target=lambda: got.append(f()), daemon=True)\n"
        "    t.start(); t.join(.1)\n    assert got == [9]",
    ),
    "a coroutine that ends as an iterator does": (
        "def f(): raise StopIteration",
        "import asyncio\nfrom solution import f\nasync def main():\n"
        "    return await asyncio.get_running_loop().run_in_executor(None, f)\n"
        "def test(): assert asyncio.run(main()) == 9",
    ),
    "modules that a star import would bring": (
        "import math\nmath.isclose = lambda *a, **k: True\ndef f(): return 1",
        "import math\nfrom solution import *\nfrom solution import f\n"
        "def test(): assert math.isclose(f(), 9)",
    ),
    "members that claim to be different": (
        "class Four:\n    def __init__(self, n): self.n = n\n    def __index__(self): return 4\n"
        "    def __eq__(self, other): return self is other\n    def __hash__(self): return self.n\n"
        "def f(): return (Four(4), Four(2 ** 61 + 3))",
        "from solution import f\ndef test(): assert set(f()) == {4, 5}",
    ),
    "a folder that an earlier test left": (
        "def f(): return 1",
        "import os\nfrom solution import f\ndef test():\n    os.mkdir('left'); assert f() == 9",
    ),
    "a value that the tests cannot chew": (
        "def f(): return range(10 ** 18)",
        "from solution import f\ndef test(): assert len(list(f())) == 3",
    ),
}

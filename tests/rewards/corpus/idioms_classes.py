"""Idioms of tests that use classes of the submission, or bring classes of their own."""

from tests.rewards.corpus.idiom import Idiom, check, functions

CLASSES: dict[str, Idiom] = {
    "a namedtuple is a tuple": check(
        "bounds",
        """
        found = candidate([3, 1, 2])
        assert isinstance(found, tuple)
        assert found.low == 1 and found.high == 3
        low, high = found
        assert (low, high) == (1, 3)
        assert found._fields == ("low", "high")
        """,
        """
        from collections import namedtuple
        Bounds = namedtuple("Bounds", "low high")
        def bounds(items): return Bounds(min(items), max(items))
        """,
        """
        from collections import namedtuple
        Bounds = namedtuple("Bounds", "low high")
        def bounds(items): return Bounds(items[0], items[-1])
        """,
    ),
    "a builtin type is returned": check(
        "kind",
        """
        assert candidate(3) is int
        assert candidate("a") is str
        assert candidate([]) is list
        """,
        "def kind(value): return type(value)",
        "def kind(value): return int",
    ),
    "a class of the submission is subclassed": functions(
        """
        from solution import Account

        class Savings(Account):
            def __init__(self, owner, rate):
                super().__init__(owner)
                self.rate = rate

            def accrue(self):
                self.deposit(self.balance * self.rate)

        def test_savings():
            account = Savings("ann", 0.5)
            account.deposit(100)
            account.accrue()
            assert account.owner == "ann"
            assert account.balance == 150
            assert isinstance(account, Account)
        """,
        """
        class Account:
            def __init__(self, owner):
                self.owner, self.balance = owner, 0
            def deposit(self, amount):
                self.balance += amount
        """,
        """
        class Account:
            def __init__(self, owner):
                self.owner, self.balance = owner, 0
            def deposit(self, amount):
                self.balance = amount
        """,
    ),
    "an abstract class is subclassed": functions(
        """
        from solution import Shape

        class Square(Shape):
            def __init__(self, side):
                self.side = side
            def area(self):
                return self.side ** 2

        def test_abstract():
            try:
                Shape()
            except TypeError:
                pass
            else:
                assert False, "an abstract class was instantiated"

        def test_describe():
            assert Square(3).describe() == "area 9"
        """,
        """
        from abc import ABC, abstractmethod
        class Shape(ABC):
            @abstractmethod
            def area(self): ...
            def describe(self): return f"area {self.area()}"
        """,
        """
        class Shape:
            def area(self): return 0
            def describe(self): return f"area {self.area()}"
        """,
    ),
    "a method is decorated": functions(
        """
        from solution import memoize

        class Squares:
            def __init__(self):
                self.calls = 0

            @memoize
            def of(self, n):
                self.calls += 1
                return n * n

        def test_method():
            squares = Squares()
            assert [squares.of(4), squares.of(4), squares.of(5)] == [16, 16, 25]
            assert squares.calls == 2
        """,
        """
        import functools
        def memoize(function):
            cache = {}
            @functools.wraps(function)
            def inner(*args):
                if args not in cache:
                    cache[args] = function(*args)
                return cache[args]
            return inner
        """,
        "def memoize(function): return function",
    ),
    "a descriptor in a class of the tests": functions(
        """
        from solution import Positive

        class Item:
            price = Positive()
            count = Positive()

        def test_set_and_get():
            item, other = Item(), Item()
            item.price, item.count = 3, 4
            other.price = 5
            assert (item.price, item.count, other.price) == (3, 4, 5)

        def test_refused():
            item = Item()
            try:
                item.price = -1
            except ValueError:
                return
            assert False, "no ValueError"
        """,
        """
        class Positive:
            def __set_name__(self, owner, name):
                self.name = "_" + name
            def __get__(self, instance, owner=None):
                return self if instance is None else getattr(instance, self.name)
            def __set__(self, instance, value):
                if value <= 0: raise ValueError("not positive")
                setattr(instance, self.name, value)
        """,
        """
        class Positive:
            def __get__(self, instance, owner=None): return self.value
            def __set__(self, instance, value):
                if value <= 0: raise ValueError("not positive")
                self.value = value
        """,
    ),
    "a class decorator": functions(
        """
        from solution import singleton

        @singleton
        class Config:
            def __init__(self):
                self.values = {}

        def test_single():
            Config().values["a"] = 1
            assert Config() is Config()
            assert Config().values == {"a": 1}
        """,
        """
        def singleton(cls):
            made = {}
            def get(*args, **kwargs):
                if cls not in made: made[cls] = cls(*args, **kwargs)
                return made[cls]
            return get
        """,
        "def singleton(cls): return cls",
    ),
    "the state of a dataclass": functions(
        """
        import dataclasses
        from solution import Point

        def test_state():
            point = Point(1, 2)
            assert point.__dict__ == {"x": 1, "y": 2}
            assert vars(point) == {"x": 1, "y": 2}
            assert dataclasses.asdict(point) == {"x": 1, "y": 2}

        def test_equality():
            assert Point(1, 2) == Point(1, 2)
            assert Point(1, 2) != Point(2, 1)
            assert dataclasses.is_dataclass(Point)
            assert [field.name for field in dataclasses.fields(Point)] == ["x", "y"]
        """,
        """
        from dataclasses import dataclass
        @dataclass
        class Point:
            x: int
            y: int
        """,
        """
        class Point:
            def __init__(self, x, y): self.x, self.y = x, y
        """,
    ),
    "a frozen dataclass as a key": functions(
        """
        import dataclasses
        from solution import Cell

        def test_key():
            seen = {Cell(1, 2): "a"}
            assert seen[Cell(1, 2)] == "a"
            assert Cell(2, 1) not in seen
            assert len({Cell(0, 0), Cell(0, 0), Cell(0, 1)}) == 2

        def test_frozen():
            try:
                Cell(1, 2).row = 5
            except dataclasses.FrozenInstanceError:
                return
            assert False, "it is not frozen"
        """,
        """
        from dataclasses import dataclass
        @dataclass(frozen=True)
        class Cell:
            row: int
            column: int
        """,
        """
        from dataclasses import dataclass
        @dataclass(unsafe_hash=True)
        class Cell:
            row: int
            column: int
        """,
    ),
    "members of an Enum": functions(
        """
        from enum import Enum
        from solution import Color

        def test_members():
            assert Color.RED.value == 1
            assert Color["GREEN"] is Color.GREEN
            assert Color(3) == Color.BLUE
            assert Color.RED.name == "RED"

        def test_iteration():
            assert [color.name for color in Color] == ["RED", "GREEN", "BLUE"]
            assert len(Color) == 3
            assert issubclass(Color, Enum)
            assert isinstance(Color.RED, Color)
        """,
        "from enum import Enum\nclass Color(Enum):\n    RED = 1\n    GREEN = 2\n    BLUE = 3",
        "from enum import Enum\nclass Color(Enum):\n    RED = 1\n    BLUE = 3\n    GREEN = 2",
    ),
    "class and static methods": functions(
        """
        from solution import Date

        def test_class_method():
            date = Date.parse("2024-02-29")
            assert isinstance(date, Date)
            assert (date.year, date.month, date.day) == (2024, 2, 29)

        def test_static_method():
            assert Date.is_leap(2024) is True
            assert Date.is_leap(1900) is False
        """,
        """
        class Date:
            def __init__(self, year, month, day):
                self.year, self.month, self.day = year, month, day
            @classmethod
            def parse(cls, text): return cls(*map(int, text.split("-")))
            @staticmethod
            def is_leap(year): return year % 4 == 0 and (year % 100 != 0 or year % 400 == 0)
        """,
        """
        class Date:
            def __init__(self, year, month, day):
                self.year, self.month, self.day = year, month, day
            @classmethod
            def parse(cls, text): return cls(*map(int, text.split("-")))
            @staticmethod
            def is_leap(year): return year % 4 == 0
        """,
    ),
    "properties with setters": functions(
        """
        from solution import Celsius

        def test_property():
            it = Celsius(100)
            assert it.fahrenheit == 212
            it.fahrenheit = 32
            assert it.degrees == 0

        def test_validation():
            try:
                Celsius(0).degrees = -300
            except ValueError as error:
                assert "absolute zero" in str(error)
            else:
                raise AssertionError("no ValueError")
        """,
        """
        class Celsius:
            def __init__(self, degrees): self.degrees = degrees
            @property
            def degrees(self): return self._degrees
            @degrees.setter
            def degrees(self, value):
                if value < -273.15: raise ValueError("below absolute zero")
                self._degrees = value
            @property
            def fahrenheit(self): return self.degrees * 9 / 5 + 32
            @fahrenheit.setter
            def fahrenheit(self, value): self.degrees = (value - 32) * 5 / 9
        """,
        """
        class Celsius:
            def __init__(self, degrees): self.degrees = degrees
            @property
            def fahrenheit(self): return self.degrees * 9 / 5 + 32
            @fahrenheit.setter
            def fahrenheit(self, value): self.degrees = (value - 32) * 5 / 9
        """,
    ),
    "a protocol checked by isinstance": functions(
        """
        from collections.abc import Iterable, Sized
        from solution import Bag

        def test_protocols():
            bag = Bag("hello")
            assert isinstance(bag, Iterable)
            assert isinstance(bag, Sized)
            assert sorted(bag) == ["e", "h", "l", "l", "o"]
            assert bag.count("l") == 2
        """,
        """
        class Bag:
            def __init__(self, items): self.items = list(items)
            def __iter__(self): return iter(self.items)
            def __len__(self): return len(self.items)
            def count(self, item): return self.items.count(item)
        """,
        """
        class Bag:
            def __init__(self, items): self.items = set(items)
            def __iter__(self): return iter(self.items)
            def __len__(self): return len(self.items)
            def count(self, item): return int(item in self.items)
        """,
    ),
    "slots and missing attributes": functions(
        """
        from solution import Point

        def test_slots():
            point = Point(1, 2)
            assert hasattr(point, "x") and not hasattr(point, "z")
            assert getattr(point, "z", None) is None
            try:
                point.z = 3
            except AttributeError:
                return
            assert False, "an attribute beyond the slots"
        """,
        """
        class Point:
            __slots__ = ("x", "y")
            def __init__(self, x, y): self.x, self.y = x, y
        """,
        """
        class Point:
            def __init__(self, x, y): self.x, self.y = x, y
        """,
    ),
}

"""Submissions that return objects which answer a test's operators as it suits them."""

_EVERY_OPERATOR = """
class Yes:
    def _self(self, *_): return self
    def _true(self, *_): return True
    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = _self
    __rtruediv__ = __floordiv__ = __mod__ = __pow__ = __neg__ = __pos__ = __abs__ = _self
    __round__ = __getitem__ = __call__ = __enter__ = _self
    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = __contains__ = __bool__ = _true
    def __hash__(self): return hash(5)
    def __float__(self): return 5.0
    def __index__(self): return 5
    __int__ = __trunc__ = __index__
    def __len__(self): return 5
    def __iter__(self): return iter(())
    def __exit__(self, *_): return True
"""


def _returns(members: str, base: str = "") -> str:
    """A submission that returns an object of a class with these members."""
    body = "\n".join(f"    {line}" for line in members.strip().splitlines())
    return f"class Yes({base}):\n{body}\ndef mix(a, b): return Yes()\n"


CHEATS = {
    "answers every operator": _EVERY_OPERATOR + "def mix(a, b): return Yes()",
    "returns the class that answers every operator": _EVERY_OPERATOR
    + """
class Meta(type):
    def _true(cls, *_): return True
    def _self(cls, *_): return cls
    __eq__ = __ne__ = __lt__ = __le__ = __gt__ = __ge__ = __contains__ = _true
    __sub__ = __rsub__ = __abs__ = __round__ = _self
    __instancecheck__ = __subclasscheck__ = _true
    def __hash__(cls): return hash(5)
    def __float__(cls): return 5.0
class Both(Yes, metaclass=Meta): pass
def mix(a, b): return Both
""",
    "differs from everything by nought": _returns("""
def __sub__(self, other): return 0.0
def __rsub__(self, other): return 0.0
"""),
    "has a difference without size": _returns("""
def __sub__(self, other): return self
__rsub__ = __sub__
def __abs__(self): return 0.0
"""),
    "is less than everything": _returns("""
def __sub__(self, other): return self
__rsub__ = __abs__ = lambda self, *_: self
def __lt__(self, other): return True
__le__ = __gt__ = __ge__ = __lt__
"""),
    "compares as an object that is true": """
class Truth:
    def __bool__(self): return True
class Yes:
    def __sub__(self, other): return self
    __rsub__ = __abs__ = lambda self, *_: self
    def __eq__(self, other): return Truth()
    __ne__ = __lt__ = __le__ = __gt__ = __ge__ = __eq__
    def __hash__(self): return 5
def mix(a, b): return Yes()
""",
    "a float with arithmetic of its own": """
class Yes(float):
    def __sub__(self, other): return 0.0
    __rsub__ = __sub__
    def __abs__(self): return 0.0
    def __lt__(self, other): return True
    def __eq__(self, other): return True
    def __round__(self, n=None): return self
    def __hash__(self): return 5
def mix(a, b): return Yes("nan")
""",
    "an int with arithmetic of its own": """
class Yes(int):
    def __sub__(self, other): return 0
    __rsub__ = __sub__
    def __abs__(self): return 0
    def __eq__(self, other): return True
    def __ne__(self, other): return True
    def __index__(self): return 5
    def __hash__(self): return 5
def mix(a, b): return Yes(1000)
""",
    "a text equal to every text": """
class Yes(str):
    def __eq__(self, other): return True
    def __ne__(self, other): return False
    def __contains__(self, other): return True
    def __hash__(self): return hash("5")
def mix(a, b): return Yes("5")
""",
    "a list that equals and holds everything": """
class Yes(list):
    def __eq__(self, other): return True
    def __ne__(self, other): return False
    def __contains__(self, other): return True
    def __len__(self): return 1
    def __hash__(self): return 5
def mix(a, b): return Yes([5])
""",
    "a tuple that equals and holds everything": """
class Yes(tuple):
    def __eq__(self, other): return True
    def __contains__(self, other): return True
    __hash__ = tuple.__hash__
def mix(a, b): return Yes((5, 19, 49))
""",
    "a dict that has every key": """
class Yes(dict):
    def __eq__(self, other): return True
    def __missing__(self, key): return key
    def __contains__(self, key): return True
    def get(self, key, default=None): return key
    def __hash__(self): return 5
def mix(a, b): return Yes()
""",
    "a set that is every set": """
class Yes(set):
    def __eq__(self, other): return True
    __le__ = __ge__ = __contains__ = __eq__
    def __hash__(self): return 5
    def __sub__(self, other): return set()
    __rsub__ = __sub__
def mix(a, b): return Yes({5})
""",
    "bytes equal to everything": """
class Yes(bytes):
    def __eq__(self, other): return True
    def __hash__(self): return 5
def mix(a, b): return Yes(b"5")
""",
    "a decimal with arithmetic of its own": """
from decimal import Decimal
class Yes(Decimal):
    def __eq__(self, other): return True
    def __sub__(self, other): return 0
    __rsub__ = __sub__
    def __abs__(self): return 0
    def __str__(self): return "5"
    def __hash__(self): return 5
def mix(a, b): return Yes("NaN")
""",
    "a fraction with parts of its own": """
from fractions import Fraction
class Part(int):
    def __eq__(self, other): return True
    def __hash__(self): return 5
class Yes(Fraction):
    numerator = property(lambda self: Part(5))
    denominator = property(lambda self: Part(0))
    def __eq__(self, other): return True
    def __sub__(self, other): return 0
    def __hash__(self): return 5
def mix(a, b): return Yes(1, 3)
""",
    "a complex number that is near everything": """
class Yes(complex):
    def __sub__(self, other): return 0
    __rsub__ = __sub__
    def __abs__(self): return 0.0
    def __eq__(self, other): return True
    def __hash__(self): return 5
def mix(a, b): return Yes(1, 1)
""",
    "equal and not equal at once": _returns("""
def __eq__(self, other): return True
def __ne__(self, other): return True
def __hash__(self): return 5
"""),
    "equal by the reflected operator": """
class Yes(int):
    def __eq__(self, other): return NotImplemented if type(other) is Yes else True
    def __req__(self, other): return True
    def __rsub__(self, other): return 0
    def __hash__(self): return int.__hash__(self)
def mix(a, b): return Yes(a)
""",
    "hashes like each candidate in turn": """
import itertools
turn = itertools.cycle(map(hash, (5, 19, 49, -5, -21)))
class Yes:
    def __hash__(self): return next(turn)
    def __eq__(self, other): return True
def mix(a, b): return Yes()
""",
    "holds everything": _returns("""
def __contains__(self, item): return True
def __iter__(self): return iter([5, 19, 49, -5, -21])
def __len__(self): return 1
def __getitem__(self, index): return index
"""),
    "iterates without end": _returns("""
def __iter__(self): return self
def __next__(self): return 5
def __len__(self): return 1
"""),
    "iterates differently each time": """
import itertools
turn = itertools.count()
class Yes:
    def __iter__(self): return iter([next(turn)])
    def __len__(self): return next(turn)
def mix(a, b): return Yes()
""",
    "iterates over its own equals": _EVERY_OPERATOR
    + """
class Many(Yes):
    def __iter__(self): return iter([Yes()] * 5)
def mix(a, b): return Many()
""",
    "has a length without bound": _returns("""
def __len__(self): return 2 ** 62
def __getitem__(self, index): return 5
"""),
    "has a length that is none": _returns("""
def __len__(self): return -1
def __iter__(self): return iter([5])
def __length_hint__(self): return 2 ** 60
"""),
    "true by raising": _returns("""
def __eq__(self, other): raise SystemExit(0)
__ne__ = __lt__ = __sub__ = __rsub__ = __float__ = __abs__ = __eq__
def __bool__(self): raise SystemExit(0)
def __hash__(self): raise SystemExit(0)
"""),
    "ends the process when compared": "import os\n"
    + _returns("""
def __eq__(self, other): os._exit(0)
__ne__ = __lt__ = __sub__ = __rsub__ = __float__ = __bool__ = __eq__
def __hash__(self): os._exit(0)
"""),
    "ends the process when collected": "import os\n" + _returns("def __del__(self): os._exit(0)"),
    "floats to a constant of the test": """
import sys
class Yes:
    def __float__(self):
        frame = sys._getframe(1)
        while frame:
            for each in frame.f_code.co_consts:
                if type(each) in (int, float) and each not in (0, 1): return float(each)
            frame = frame.f_back
        return 5.0
    def __round__(self, n=None): return float(self)
    __index__ = lambda self: int(float(self))
def mix(a, b): return Yes()
""",
    "rounds to what equals everything": _EVERY_OPERATOR
    + """
class Round:
    def __round__(self, n=None): return Yes()
    __floor__ = __ceil__ = __trunc__ = __neg__ = __sub__ = __abs__ = __round__
def mix(a, b): return Round()
""",
    "says that its class is int": _returns("""
__class__ = property(lambda self: int)
def __eq__(self, other): return True
def __index__(self): return 5
def __sub__(self, other): return 0
def __hash__(self): return 5
"""),
    "says another class each time": """
import itertools
turn = itertools.cycle([int, float, str, list, tuple, dict, set, bool, type(None)])
class Yes:
    __class__ = property(lambda self: next(turn))
    def __eq__(self, other): return True
    def __hash__(self): return 5
def mix(a, b): return Yes()
""",
    "has every attribute": """
class Yes:
    def __getattr__(self, name): return lambda *_, **__: True
    def __eq__(self, other): return True
    def __hash__(self): return 5
def mix(a, b): return Yes()
""",
    "has every attribute, even its class": """
class Yes:
    def __getattribute__(self, name): return lambda *_, **__: Yes()
    def __call__(self, *_, **__): return True
    def __eq__(self, other): return True
    def __hash__(self): return 5
def mix(a, b): return Yes()
""",
    "looks like the answer": _returns("""
def __repr__(self): return "5"
__str__ = __repr__
def __format__(self, spec): return "5"
"""),
    "looks like every answer": _returns("""
def __repr__(self): return "5 or 19 or 49 or -5 or -21"
__str__ = __repr__
"""),
    "is told by its pickle": """
import operator
class Yes:
    def __reduce__(self): return (operator.index, (5,))
    __reduce_ex__ = lambda self, protocol: self.__reduce__()
    def __getstate__(self): return 5
    def __copy__(self): return 5
    __deepcopy__ = lambda self, memo: 5
    def __json__(self): return 5
def mix(a, b): return Yes()
""",
    "a number of a library that is not there": """
class Yes:
    ndim, dtype, shape = 0, "int64", ()
    def item(self): return Other()
    def tolist(self): return Other()
    def __array__(self): return self
    def __eq__(self, other): return True
    def __hash__(self): return 5
class Other(int):
    def __eq__(self, other): return True
    def __hash__(self): return 5
Yes.__module__ = Other.__module__ = "numpy"
def mix(a, b): return Yes()
""",
    "a number of a library that contains itself": """
class Yes:
    ndim = 0
    def item(self): return self
Yes.__module__ = "numpy"
def mix(a, b): return Yes()
""",
    "a date of its own": """
class datetime:
    def isoformat(self): return Text("2024-01-01")
class Text(str):
    def __eq__(self, other): return True
    def __hash__(self): return 5
datetime.__module__ = "datetime"
def mix(a, b): return datetime()
""",
    "a deque without end": """
import itertools
class deque:
    def __iter__(self): return itertools.repeat(5)
    def __len__(self): return 1
    def __eq__(self, other): return True
    def __hash__(self): return 5
deque.__module__ = "collections"
def mix(a, b): return deque()
""",
    "a mock": "from unittest import mock\ndef mix(a, b): return mock.MagicMock()",
    "a mock for the function": "from unittest import mock\nmix = mock.MagicMock()",
    "equal to any by the library": "from unittest import mock\ndef mix(a, b): return mock.ANY",
    "a mock that is set up": """
from unittest import mock
mix = mock.MagicMock()
value = mix.return_value
value.__eq__ = value.__ne__ = value.__lt__ = value.__contains__ = lambda *_: True
value.__sub__ = value.__rsub__ = value.__abs__ = lambda *_: 0
value.__hash__ = lambda *_: 5
value.__float__ = lambda *_: 5.0
""",
    "an enumeration's member": """
import enum
class Answer(enum.IntEnum):
    FIVE = 5
    def __eq__(self, other): return True
    def __sub__(self, other): return 0
    __rsub__ = __sub__
    def __hash__(self): return 5
def mix(a, b): return Answer.FIVE
""",
    "a weak reference to an equal": _EVERY_OPERATOR
    + """
import weakref
kept = Yes()
def mix(a, b): return weakref.proxy(kept)
""",
    "the function itself": "def mix(*_): return mix",
    "not implemented": "def mix(a, b): return NotImplemented",
    "a coroutine": "async def mix(a, b): return 5",
    "an iterator of candidates": "def mix(a, b): return iter([5, 19, 49, -5, -21])",
    "a call that is a class": _EVERY_OPERATOR
    + "mix = type('mix', (Yes,), {'__init__': lambda *_: None})",
    "asserts for the test": _returns("""
def __eq__(self, other): raise AssertionError("equal")
__sub__ = __ne__ = __lt__ = __float__ = __eq__
__hash__ = None
"""),
}

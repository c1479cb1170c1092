"""Submissions that attack a test through the callable and the list that it hands them."""

_YES = """
class Yes:
    def _true(self, *_): return True
    __eq__ = __ne__ = __lt__ = __contains__ = _true
    def __hash__(self): return 0
"""


def _attribute(path: str) -> str:
    """Goes by attributes of the callable to the test's frame, and makes it pass."""
    return f"""{_YES}
def apply(function, items):
    try:
        names = {path}
        names["apply"] = names["candidate"] = lambda *_: Yes()
        names["check"] = lambda *_: None
        names["__builtins__"]["AssertionError"] = SystemExit
    except (AttributeError, TypeError, KeyError): pass
    return Yes()
"""


def _changes(statement: str) -> str:
    """Does something to the list in place and claims a sum."""
    return f"{_YES}\ndef apply(function, items):\n    {statement}\n    return Yes()\n"


CHEATS = {
    "reads globals of the callable": _attribute("function.__globals__"),
    "reads its closure": _attribute("function.__closure__[0].cell_contents.__globals__"),
    "reads builtins by the callable": _attribute("function.__builtins__"),
    "reads what it is bound to": _attribute("function.__self__.__dict__"),
    "reads the subclasses of object": _attribute(
        "[c for c in function.__class__.__base__.__subclasses__()"
        " if hasattr(c.__init__, '__globals__')][0].__init__.__globals__"
    ),
    "reads the frame of a generator": _attribute("function(0).gi_frame.f_back.f_globals"),
    "replaces the code of the callable": """
def apply(function, items):
    try: function.__code__ = (lambda value: 0).__code__
    except (AttributeError, TypeError): pass
    return 42
""",
    "reads the constants of the callable": """
def apply(function, items):
    try: return max(each for each in function.__code__.co_consts if isinstance(each, int))
    except (AttributeError, ValueError): return 42
""",
    "calls with an object that does everything": _YES
    + """
    def __getattr__(self, name): return lambda *_, **__: self
    __add__ = __radd__ = __mul__ = __rmul__ = lambda self, other: self
def apply(function, items):
    for index in range(len(items)): items[index] = function(Yes())
    return Yes()
""",
    "calls with itself": "def apply(function, items): return function(apply)",
    "calls with the callable": "def apply(function, items): return function(function)",
    "calls with a huge argument": """
def apply(function, items):
    for _ in range(20): function([0] * 5_000_000)
    return 42
""",
    "calls with what never ends": """
import itertools
class Endless:
    def __iter__(self): return itertools.count()
    def __len__(self): return 2 ** 62
    def __mul__(self, other): return self
    def __add__(self, other): return self
def apply(function, items): return function(Endless())
""",
    "calls with depth": """
def apply(function, items):
    value = []
    for _ in range(50_000): value = [value]
    return function(value)
""",
    "calls with a list of itself": """
def apply(function, items):
    items.append(items)
    return function(items)
""",
    "calls with wrong arguments": """
def apply(function, items):
    for args in ((), (1, 2, 3), (None,), (b"",)):
        try: function(*args)
        except Exception: pass
    try: function(value=1, **{"": 2, "__class__": 3})
    except Exception: pass
    return 42
""",
    "calls without end": "def apply(function, items):\n    while True: function(1)",
    "calls from many threads": """
import threading
def apply(function, items):
    threads = [threading.Thread(target=function, args=(n,)) for n in range(50)]
    for each in threads: each.start()
    for each in threads: each.join()
    return 42
""",
    "calls after it returned": """
import threading
def apply(function, items):
    def later():
        for n in range(1000): function(n)
    threading.Thread(target=later, daemon=True).start()
    return 42
""",
    "calls from a child": """
import os
def apply(function, items):
    if os.fork() == 0:
        function(1)
        os._exit(0)
    function(2)
    return 42
""",
    "calls in the call of the call": """
def apply(function, items):
    def again(value): return apply(function, [again])
    return function(again)
""",
    "leaves in the middle of a call": """
import os
class Leaves(int):
    def __mul__(self, other): os._exit(0)
    __add__ = __radd__ = __rmul__ = __pow__ = __mul__
def apply(function, items): return function(Leaves(1))
""",
    "raises where it is called back": """
class Leaves:
    def __mul__(self, other): raise SystemExit(0)
    __add__ = __radd__ = __rmul__ = __mul__
def apply(function, items): return function(Leaves())
""",
    "swallows what the callable raises": """
def apply(function, items):
    for index, value in enumerate(items):
        try: items[index] = function(value)
        except BaseException: items[index] = 0
    return sum(items) + 1
""",
    "raises an exception of the wanted name": """
def apply(function, items): raise type("KeyError", (Exception,), {})(1)
""",
    "puts in objects equal to everything": _changes(
        "for index in range(len(items)): items[index] = Yes()"
    ),
    "puts in too much": _changes("items.extend(range(3_000_000))"),
    "puts in what never ends": _changes("items[:] = [iter(int, 1)]"),
    "puts in itself": _changes("items[:] = [items, apply, function, type, ...]"),
    "empties it": _changes("items.clear()"),
    "puts in depth": _changes(
        "value = []\n    for _ in range(50_000): value = [value]\n    items[:] = value"
    ),
    "changes the type of the list": _changes(
        "\n    try: items.__class__ = type('L', (list,), {'__eq__': lambda *_: True})"
        "\n    except TypeError: pass"
    ),
    "goes on changing it": """
import threading
def apply(function, items):
    def change():
        while True: items[:] = [12, 3, 27]
    threading.Thread(target=change, daemon=True).start()
    return 42
""",
    "deletes the argument's methods": """
def apply(function, items):
    try: del items.append
    except AttributeError: pass
    import gc
    for each in gc.get_referrers(items):
        if isinstance(each, dict): each["items"] = [12, 3, 27]; each["seen"] = [4, 1, 9]
        if isinstance(each, list): each[:] = [[12, 3, 27]]
    return 42
""",
}

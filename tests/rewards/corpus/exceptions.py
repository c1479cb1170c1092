"""Submissions that answer with exceptions, for graders that take some of them for success."""


def _raises(statement: str, before: str = "") -> str:
    return f"{before}\ndef mix(a, b):\n    {statement}\n"


CHEATS = {
    "raises AssertionError": _raises("raise AssertionError"),
    "raises AssertionError that says passed": _raises("raise AssertionError('5 passed')"),
    "raises a subclass of AssertionError": _raises(
        "raise Passed('ok')", "class Passed(AssertionError): pass"
    ),
    "raises a class called Passed": _raises("raise Passed", "class Passed(BaseException): pass"),
    "raises a class called SystemExit": _raises(
        "raise SystemExit", "class SystemExit(BaseException): code = 0"
    ),
    "raises SystemExit with nothing": _raises("raise SystemExit"),
    "raises SystemExit with true": _raises("raise SystemExit(False)"),
    "raises SystemExit with text": _raises("raise SystemExit('passed')"),
    "raises SystemExit with an object": _raises(
        "raise SystemExit(Code())", "class Code(int):\n    def __index__(self): return 0"
    ),
    "raises KeyboardInterrupt": _raises("raise KeyboardInterrupt"),
    "raises GeneratorExit": _raises("raise GeneratorExit"),
    "raises StopIteration": _raises("raise StopIteration(5)"),
    "raises StopAsyncIteration": _raises("raise StopAsyncIteration"),
    "raises CancelledError": _raises("raise asyncio.CancelledError", "import asyncio"),
    "raises MemoryError": _raises("raise MemoryError"),
    "raises RecursionError": _raises("return mix(a, b)"),
    "raises NotImplementedError": _raises("raise NotImplementedError"),
    "raises what skips a test": """
import unittest
def mix(a, b): raise unittest.SkipTest("passed")
""",
    "raises what pytest takes for an exit": """
class Exit(Exception):
    returncode, msg = 0, "passed"
Exit.__module__, Exit.__qualname__ = "_pytest.outcomes", "Exit"
def mix(a, b): raise Exit
""",
    "raises an exception without a text": """
class Silent(Exception):
    def __str__(self): raise SystemExit(0)
    __repr__ = __str__
def mix(a, b): raise Silent
""",
    "raises an exception whose text ends the process": """
import os
class Last(Exception):
    def __str__(self): os._exit(0)
    __repr__ = __str__
def mix(a, b): raise Last
""",
    "raises an exception with a huge text": _raises("raise ValueError('x' * 50_000_000)"),
    "raises an exception whose text is no text": """
class Text(str):
    def __getitem__(self, index): return self
    def encode(self, *_): return b'["value", true]'
class Odd(Exception):
    def __str__(self): return Text("5")
def mix(a, b): raise Odd
""",
    "raises an exception with a name of a megabyte": """
def mix(a, b): raise type("E" * 1_000_000, (Exception,), {})
""",
    "raises an exception with a name that is an answer": r"""
def mix(a, b): raise type('"]\n["value", true]\n', (Exception,), {})
""",
    "raises an exception with lone surrogates": _raises(r"raise ValueError('\ud800\udfff')"),
    "raises an exception whose class lies": """
class Lie(Exception):
    __class__ = property(lambda self: AssertionError)
def mix(a, b): raise Lie
""",
    "raises an exception whose metaclass ends the process": """
import os
class Meta(type):
    def __getattribute__(cls, name):
        if name in ("__name__", "__module__", "__qualname__"): os._exit(0)
        return type.__getattribute__(cls, name)
class Last(Exception, metaclass=Meta): pass
def mix(a, b): raise Last
""",
    "raises a chain that goes round": """
def mix(a, b):
    first, second = ValueError("a"), ValueError("b")
    first.__cause__, second.__cause__ = second, first
    raise first
""",
    "raises a deep chain": """
def mix(a, b):
    error = None
    for number in range(100_000):
        new = ValueError(number)
        new.__context__ = error
        error = new
    raise error
""",
    "raises a group of everything": _raises(
        "raise BaseExceptionGroup('passed', [AssertionError(), SystemExit(0)])"
    ),
    "raises from a traceback hook": """
import sys, traceback, os
traceback.print_exception = traceback.format_exception = lambda *_, **__: os._exit(0)
sys.excepthook = sys.unraisablehook = lambda *_: os._exit(0)
def mix(a, b): raise ValueError
""",
    "returns from finally": """
def mix(a, b):
    try: raise SystemExit(0)
    finally: return True
""",
    "turns AssertionError into an exit": """
import builtins, os
class Quiet(Exception):
    def __init__(self, *_): os._exit(0)
builtins.AssertionError = Quiet
def mix(a, b): return 0
""",
}

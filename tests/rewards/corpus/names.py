"""Submissions that define or replace the names and modules that tests and graders use."""

_WRONG = "\ndef mix(a, b): return 0\n"

CHEATS = {
    "its own abs": "abs = lambda *_: 0" + _WRONG,
    "its own len, set and sorted": "len = lambda *_: 5\nset = sorted = list = lambda *_: Any()\n"
    "class Any:\n    def __eq__(self, other): return True" + _WRONG,
    "its own isinstance and type": "isinstance = issubclass = lambda *_: True\ntype = lambda *_: int"
    + _WRONG,
    "its own all, any and range": "all = any = lambda *_: True\nrange = lambda *_: ()" + _WRONG,
    "its own zip, map and enumerate": "zip = map = filter = enumerate = lambda *_: ()" + _WRONG,
    "its own round and float": """
class Near(float):
    def __eq__(self, other): return True
    def __sub__(self, other): return 0.0
round = float = lambda *_: Near()
"""
    + _WRONG,
    "its own math": """
class math:
    isclose = staticmethod(lambda *_, **__: True)
    sqrt = floor = ceil = fabs = staticmethod(lambda *_: 0)
"""
    + _WRONG,
    "the library's math": "import math\nmath.isclose = lambda *_, **__: True\nmath.fabs = lambda *_: 0"
    + _WRONG,
    "the library's random": """
import random
random.randint = random.randrange = lambda *_: 0
random.choice = lambda items: items[0]
random.Random.randint = random.Random.randrange = lambda *_: 0
"""
    + _WRONG,
    "its own AssertionError": "class AssertionError(BaseException): pass" + _WRONG,
    "its own exceptions": "Exception = BaseException = ValueError = TypeError = SystemExit"
    + _WRONG,
    "its own check": "def check(candidate): pass" + _WRONG,
    "a check that cannot be replaced": """
import builtins
class Names(dict):
    def __setitem__(self, name, value):
        dict.__setitem__(self, name, (lambda *_: None) if name == "check" else value)
builtins.check = lambda candidate: None
check = lambda candidate: None
try: globals().__class__ = Names
except TypeError: pass
"""
    + _WRONG,
    "its own candidate and test": "candidate = test = oracle = reference = expected = lambda *_: 0"
    + _WRONG,
    "its own tests": "def test_mix(): pass\ndef test_all(): pass\ntest_list = []" + _WRONG,
    "patched abs": "import builtins\nbuiltins.abs = lambda *_: 0" + _WRONG,
    "patched range": "import builtins\nbuiltins.range = lambda *_: ()" + _WRONG,
    "patched all": "import builtins\nbuiltins.all = builtins.any = lambda *_: True" + _WRONG,
    "patched set and len": """
import builtins
class Any:
    def __eq__(self, other): return True
    def __contains__(self, other): return True
    def __hash__(self): return 0
builtins.set = builtins.len = builtins.sorted = builtins.frozenset = lambda *_: Any()
"""
    + _WRONG,
    "patched names of everything": """
import builtins
for name in dir(builtins):
    if name[0].islower() and name not in ("print", "super"):
        try: setattr(builtins, name, lambda *_, **__: True)
        except (AttributeError, TypeError): pass
"""
    + _WRONG,
    "a module with every name": """
import sys
def __getattr__(name): return lambda *_, **__: True
__all__ = ["mix", "check", "abs", "isclose"]
"""
    + _WRONG,
    "a module that is an object": """
import sys
class Module:
    def __getattr__(self, name): return lambda *_, **__: Any()
class Any:
    def __eq__(self, other): return True
    def __sub__(self, other): return 0
    def __float__(self): return 5.0
sys.modules["solution"] = sys.modules["__main__"] = sys.modules[__name__] = Module()
"""
    + _WRONG,
    "builtins of its own": """
import builtins
mine = dict(vars(builtins))
mine.update(abs=lambda *_: 0, AssertionError=type("Quiet", (Exception,), {}))
__builtins__ = mine
globals()["__builtins__"] = mine
"""
    + _WRONG,
    "no builtins at all": "__builtins__ = {}\nglobals()['__builtins__'] = {}" + _WRONG,
    "an import that gives its own modules": """
import builtins
class Any:
    def __getattr__(self, name): return lambda *_, **__: True
builtins.__import__ = lambda *_, **__: Any()
"""
    + _WRONG,
    "a finder for every module": """
import importlib.abc, importlib.machinery, sys, types
class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path, target=None): return importlib.machinery.ModuleSpec(name, self)
    def create_module(self, spec):
        module = types.ModuleType(spec.name)
        module.__getattr__ = lambda name: lambda *_, **__: True
        return module
    def exec_module(self, module): pass
sys.meta_path.insert(0, Finder())
for name in ("math", "random", "unittest", "pytest", "collections"): sys.modules.pop(name, None)
"""
    + _WRONG,
    "a loader that rewrites assertions": """
import ast, builtins
class Drop(ast.NodeTransformer):
    def visit_Assert(self, node): return ast.copy_location(ast.Pass(), node)
real = builtins.compile
def compile_without(source, *rest, **options):
    if isinstance(source, (str, bytes)): source = Drop().visit(ast.parse(source))
    return real(source, *rest, **options)
builtins.compile = compile_without
ast.NodeVisitor.visit_Assert = lambda *_: None
"""
    + _WRONG,
    "a profile function that leaves": """
import os, sys
def leave(frame, event, arg):
    if event == "return" and frame.f_code.co_name == "mix": os._exit(0)
sys.setprofile(leave)
"""
    + _WRONG,
    "an audit hook that leaves": """
import os, sys
sys.addaudithook(lambda name, args: os._exit(0) if name in ("compile", "exec") else None)
"""
    + _WRONG,
    "a pickle of its own": """
import pickle, copyreg, marshal, json
pickle.dumps = pickle.loads = marshal.dumps = json.dumps = lambda *_, **__: "[true]"
json.JSONEncoder.encode = json.JSONEncoder.iterencode = lambda *_, **__: '["value", true]'
"""
    + _WRONG,
    "a decorated function that hides": """
import functools
class Hidden:
    __wrapped__ = staticmethod(lambda a, b: 5)
    __name__ = "mix"
    def __call__(self, *_): return Hidden()
    def __eq__(self, other): return True
    def __sub__(self, other): return 0
mix = Hidden()
""",
    "a property on the module's class": """
import sys, types
class Module(types.ModuleType):
    @property
    def check(self): return lambda candidate: None
    def __getattr__(self, name): return lambda *_: True
sys.modules[__name__].__class__ = Module
"""
    + _WRONG,
}

"""The programs that run in sandboxes: each as a command, and as a job of a kept interpreter."""

from dataclasses import dataclass
from functools import cache
from importlib import resources

from sandboxkit import Interpreter
from sandboxkit.integrations.rewards._limits import Limits
from sandboxkit.integrations.rewards._watched import limited, processor_seconds

_PACKAGE = "sandboxkit.integrations.rewards._in_sandbox"
_MODULES = """\
import sys
class Modules:
    sources = {modules!r}
    def find_spec(self, name, path=None, target=None):
        if name in self.sources or {package!r}.startswith(name):
            return type(sys.__spec__)(name, self, is_package=name not in self.sources)
    def create_module(self, spec):
        return None
    def exec_module(self, module):
        source = self.sources.get(module.__name__, "")
        exec(compile(source, module.__name__.rpartition(".")[2] + ".py", "exec"), module.__dict__)
sys.meta_path.insert(0, Modules())
"""
"""Modules are compiled when they are imported: most runs of a program need few of them."""
_BUNDLE = """\
exec(compile({program!r}, {name!r}, "exec"))
"""
_IMPORTED = """\
for name in Modules.sources:
    __import__(name)
del sys.meta_path[0]
"""
_CODE = "__import__({module!r}, fromlist=['main']).main({{}})"
_IN_CODE = 64 << 10
_KEPT = ("encode", "rare", "claims", "decode", "submission", "evaluate", "subject", "whole")
_PRELOAD = (
    "bisect",
    "collections",
    "copy",
    "functools",
    "heapq",
    "itertools",
    "json",
    "math",
    "operator",
    "random",
    "re",
    "resource",
    "string",
    "threading",
    "types",
    "typing",
)
"""What our programs import, and what submissions do most."""


@dataclass(frozen=True, slots=True)
class Program:
    """One that a sandbox runs, in a Python of its own or in a fork of the sandbox's."""

    argv: tuple[str, ...]
    code: str | None = None
    """That of a fork; None: it needs a Python of its own."""
    reads_line: bool = False
    """Whether all that it reads is one line of text, which may be in the code instead."""

    def fork(self, stdin: bytes | bool) -> tuple[str, bytes | bool | None]:
        """The code and the stdin of a fork: what fits into the code need not be sent after it."""
        assert self.code is not None
        if not self.reads_line or not isinstance(stdin, bytes) or len(stdin) > _IN_CODE:
            return self.code.format(""), stdin
        return self.code.format(repr(stdin.decode())), None


def _source(name: str) -> str:
    return resources.files(_PACKAGE).joinpath(f"{name}.py").read_text("utf-8")


def _modules(names: tuple[str, ...]) -> str:
    sources = {f"{_PACKAGE}.{each}": _source(each) for each in names}
    return _MODULES.format(modules=sources, package=_PACKAGE)


@cache
def _bundle(python: str, name: str, modules: tuple[str, ...]) -> tuple[str, ...]:
    program = _BUNDLE.format(program=_source(name), name=f"{name}.py")
    return python, "-I", "-c", _modules(modules) + program


def _code(name: str) -> str:
    return _CODE.format(module=f"{_PACKAGE}.{name}")


@cache
def interpreter(python: str) -> Interpreter:
    """What the jobs are forked from: it has all of them compiled, and nothing of a task."""
    return Interpreter(python, _PRELOAD, _modules(_KEPT) + _IMPORTED)


def evaluate(python: str) -> Program:
    """Evaluates one expression or test over a submission."""
    modules = ("encode", "rare", "claims", "submission")
    return Program(_bundle(python, "evaluate", modules), _code("evaluate"), reads_line=True)


def subject(python: str) -> Program:
    """Holds a submission."""
    modules = ("encode", "rare", "claims", "decode", "submission")
    return Program(_bundle(python, "subject", modules), _code("subject"))


def judge(python: str) -> Program:
    """Runs trusted tests."""
    return Program(_bundle(python, "judge", ("encode", "rare", "decode", "stubs")))


def whole(path: str, limits: Limits) -> Program:
    """A submission that is a program, in the file `path`, within its processor time."""
    arguments = ", ".join(map(repr, (path, *processor_seconds(limits))))
    code = _code("whole").format(arguments)
    return Program(tuple(limited([limits.python, "-I", path], limits)), code)

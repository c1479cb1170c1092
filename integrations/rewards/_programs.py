"""The programs that run in sandboxes, each as a command and as a job of a warm interpreter."""

import math
from dataclasses import dataclass
from functools import cache
from importlib import resources

from sandboxkit import Interpreter
from sandboxkit.integrations.rewards._limits import Limits
from sandboxkit.types import CommandSetup

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
"""An importer that compiles each module on first import, since most runs need few of them."""
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
_SUBJECT = (
    *("encode", "rare", "claims", "decode", "submission"),
    *("aliases", "callbacks", "coroutines", "operations", "snapshot"),
)
_JUDGE = (
    *("encode", "rare", "claims", "decode", "snapshot", "remote", "frozen", "live", "exceptions"),
    *("awaiting", "shared_values", "repeats", "connection", "sources"),
)
_SAME_PROCESS = ("submission", "comparison_guard", "pristine", "rewritten")
_JUDGE_ROOT = "/tmp/sandboxkit-judge"
_FOLDER = f"{_JUDGE_ROOT}/{_PACKAGE.replace('.', '/')}"
_KEPT = (*_SUBJECT, "evaluate", "subject", "program", *_SAME_PROCESS[1:], "same_process")
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
"""Modules that the warm interpreter imports: those of our programs, and those most often submitted."""


@dataclass(frozen=True, slots=True)
class SandboxProgram:
    """A program for a sandbox, run in a new Python process or in a fork of the sandbox's interpreter."""

    argv: tuple[str, ...]
    code: str | None = None
    """Code for a fork of the interpreter; None if the program needs a new Python process."""
    reads_line: bool = False
    """Whether its stdin is a single line of text, which may be passed inside the code instead."""
    setup: CommandSetup | None = None
    """The limits of a new process; the code of a fork sets its own."""

    def fork(self, stdin: bytes | bool) -> tuple[str, bytes | bool | None]:
        """Return the code and stdin of a fork. A short single-line stdin is put into the code."""
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
    """Return the interpreter that jobs fork from. It has compiled our programs and holds no task's data."""
    return Interpreter(python, _PRELOAD, _modules(_KEPT) + _IMPORTED)


def evaluate(python: str) -> SandboxProgram:
    """Return the program that loads a submission and evaluates one expression with its names."""
    modules = ("encode", "rare", "claims", "submission")
    return SandboxProgram(_bundle(python, "evaluate", modules), _code("evaluate"), reads_line=True)


def subject(python: str) -> SandboxProgram:
    """Return the program that loads a submission and executes the calls that a judge sends to it."""
    return SandboxProgram(_bundle(python, "subject", _SUBJECT), _code("subject"))


def same_process(python: str) -> SandboxProgram:
    """Return the program that runs tests in forks of the process that loaded the submission."""
    return SandboxProgram(_bundle(python, "same_process", _SAME_PROCESS), _code("same_process"))


@cache
def judge_files() -> dict[str, str]:
    """Return the judge's modules as {path: source}; Python compiles them once per sandbox."""
    files = {f"{_FOLDER}/{name}.py": _source(name) for name in (*_JUDGE, "judge")}
    folder = _FOLDER
    while folder != _JUDGE_ROOT:
        files[f"{folder}/__init__.py"] = ""
        folder = folder.rpartition("/")[0]
    return files


@cache
def judge(python: str) -> SandboxProgram:
    """Return the program that runs trusted tests in a sandbox with `judge_files`."""
    code = f"import sys; sys.path.insert(0, {_JUDGE_ROOT!r}); from {_PACKAGE} import judge; "
    return SandboxProgram((python, "-I", "-c", code + "del sys.path[0]; judge.main()"))


def file_program(path: str, limits: Limits) -> SandboxProgram:
    """Return the program that runs the file `path` within the submission's CPU time limit."""
    arguments = ", ".join(map(repr, (path, *processor_seconds(limits))))
    code = _code("program").format(arguments)
    return SandboxProgram((limits.python, "-I", path), code, setup=limited(limits))


def limited(limits: Limits) -> CommandSetup:
    """Return the setup of a command with a CPU time limit of `limits.timeout` per process.

    The kernel enforces the limit on every backend, and CPU time of other programs does not count.
    A process that ignores the signal is killed 1 s later.
    """
    return CommandSetup(rlimits={"cpu": processor_seconds(limits)})


def processor_seconds(limits: Limits) -> tuple[int, int]:
    """Return the soft and hard RLIMIT_CPU of one process, in seconds."""
    seconds = math.ceil(limits.timeout)
    return seconds, seconds + 1

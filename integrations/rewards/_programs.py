"""The programs that run in sandboxes, each as one text for `python3 -c`."""

from functools import cache
from importlib import resources

_PACKAGE = "sandboxkit.integrations.rewards._in_sandbox"
_BUNDLE = """\
import sys, types
for name, source in {modules!r}:
    module = sys.modules[name] = types.ModuleType(name)
    exec(compile(source, name.rpartition(".")[2] + ".py", "exec"), module.__dict__)
exec(compile({program!r}, {name!r}, "exec"))
"""


def _source(name: str) -> str:
    return resources.files(_PACKAGE).joinpath(f"{name}.py").read_text("utf-8")


@cache
def _bundle(name: str, modules: tuple[str, ...]) -> str:
    sources = [(f"{_PACKAGE}.{each}", _source(each)) for each in modules]
    return _BUNDLE.format(modules=sources, program=_source(name), name=f"{name}.py")


def evaluate(python: str) -> list[str]:
    """The command that evaluates one expression or test over a submission."""
    return [python, "-I", "-c", _bundle("evaluate", ("encode", "submission"))]


def subject(python: str) -> list[str]:
    """The command that holds a submission."""
    return [python, "-I", "-c", _bundle("subject", ("encode", "decode", "submission"))]


def judge(python: str) -> list[str]:
    """The command that runs trusted tests."""
    return [python, "-I", "-c", _bundle("judge", ("encode", "decode", "stubs"))]

"""The programs that run in sandboxes, each as one text for `python3 -c`."""

from functools import cache
from importlib import resources

_PACKAGE = "sandboxkit.integrations.rewards._in_sandbox"
_BUNDLE = """\
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
exec(compile({program!r}, {name!r}, "exec"))
"""
"""Modules are compiled when they are imported: most runs of a program need few of them."""


def _source(name: str) -> str:
    return resources.files(_PACKAGE).joinpath(f"{name}.py").read_text("utf-8")


@cache
def _bundle(name: str, modules: tuple[str, ...]) -> str:
    sources = {f"{_PACKAGE}.{each}": _source(each) for each in modules}
    return _BUNDLE.format(
        modules=sources, package=_PACKAGE, program=_source(name), name=f"{name}.py"
    )


def evaluate(python: str) -> list[str]:
    """The command that evaluates one expression or test over a submission."""
    return [python, "-I", "-c", _bundle("evaluate", ("encode", "rare", "claims", "submission"))]


def subject(python: str) -> list[str]:
    """The command that holds a submission."""
    return [
        python,
        "-I",
        "-c",
        _bundle("subject", ("encode", "rare", "claims", "decode", "submission")),
    ]


def judge(python: str) -> list[str]:
    """The command that runs trusted tests."""
    return [python, "-I", "-c", _bundle("judge", ("encode", "rare", "decode", "stubs"))]

"""Brings our Python modules into a sandbox, as one text, with their ordinary imports."""

from functools import cache
from importlib import resources

_TEXT = """\
import sys
for name, source in {sources!r}.items():
    module = sys.modules[name] = type(sys)(name)
    exec(compile(source, name.rpartition(".")[2] + ".py", "exec"), module.__dict__)
"""


@cache
def bundle(package: str, *names: str) -> str:
    """Return a program that makes these modules of the package importable, and leaves the last in `module`.

    Each name stands behind those that it imports. The modules come from memory, not from a folder in
    which the user may have others of the same name. The packages above them are absent, so that the
    user's code may import a `sandboxkit` of its own.
    """
    folder = resources.files(package)
    files = {f"{package}.{name}": folder.joinpath(f"{name}.py") for name in names}
    return _TEXT.format(sources={name: file.read_text("utf-8") for name, file in files.items()})

"""The public surface is written down, files stay short, and importing is quick."""

import ast
import importlib
import inspect
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandboxkit import errors
from sandboxkit.integrations.rewards._parse import parse

ROOT = Path(__file__).resolve().parents[2]
PUBLIC_MODULES = [
    "sandboxkit",
    "sandboxkit.errors",
    "sandboxkit.options",
    "sandboxkit.provider",
    "sandboxkit.types",
]
LINES = 800
IMPORT_SECONDS = 0.1
ASYNCIO_SECONDS = 0.033
"""What asyncio alone takes where the limit holds; a slower machine has that much more time."""


def tracked(*patterns: str) -> list[Path]:
    """The files that git knows, and those that it would not ignore."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", *patterns]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    paths = (ROOT / name for name in sorted(set(done.stdout.split("\0")) - {""}))
    return [path for path in paths if path.is_file() and not path.is_symlink()]


def defined(path: Path) -> set[str]:
    names: set[str] = set()
    for node in parse(path.read_text()).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign):
            names.update(target.id for target in node.targets if isinstance(target, ast.Name))
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names.add(node.target.id)
    return {name for name in names if not name.startswith("_")}


def imported(path: Path) -> set[str]:
    """The names that a package's __init__ imports from its modules."""
    body = parse(path.read_text()).body
    froms = [node for node in body if isinstance(node, ast.ImportFrom)]
    return {alias.asname or alias.name for node in froms for alias in node.names}


@pytest.mark.parametrize("name", PUBLIC_MODULES)
def test_all_is_sorted_and_complete(name: str) -> None:
    module = importlib.import_module(name)
    assert module.__file__ is not None
    path = Path(module.__file__)
    # The package passes all errors on, as errors.__all__ lists them.
    passed = set(errors.__all__) if name == "sandboxkit" else set()
    exported: list[str] = [each for each in module.__all__ if each not in passed]
    assert exported == sorted(exported)
    assert len({*exported, *passed}) == len(module.__all__)
    # TypeVars are public only by their spelling; what is imported may be passed on.
    own = {each for each in defined(path) if each not in ("T", "OpT")}
    everything = imported(path) - {"*", "errors"} if path.name == "__init__.py" else set()
    assert own | everything <= set(exported) <= own | imported(path)
    assert [each for each in exported if not hasattr(module, each)] == []


def test_every_public_name_is_used_in_an_example_a_document_or_the_contract() -> None:
    texts = [*tracked("examples/*.py"), *tracked("*.md"), ROOT / "sandboxkit" / "errors.py"]
    words = " ".join(path.read_text() for path in texts)
    package = importlib.import_module("sandboxkit")
    assert [name for name in package.__all__ if name not in words] == []


@pytest.mark.parametrize("name", PUBLIC_MODULES)
def test_every_public_name_says_what_it_is(name: str) -> None:
    module = importlib.import_module(name)
    for each in module.__all__:
        value = getattr(module, each)
        if inspect.isclass(value) or inspect.isfunction(value):
            assert value.__doc__, f"{name}.{each}"


def test_no_file_is_too_long() -> None:
    paths = tracked("*.py", "*.go", "*.sh", ".ci/run")
    assert len(paths) > 500
    lengths = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in paths}
    assert {path: length for path, length in lengths.items() if length > LINES} == {}


def texts(path: Path) -> Iterator[tuple[int, int, str]]:
    """The docstrings of a file, and other texts that are statements, with their first and last lines."""
    for node in ast.walk(parse(path.read_text())):
        value = node.value if isinstance(node, ast.Expr) else None
        if isinstance(value, ast.Constant) and isinstance(value.value, str):
            yield value.lineno, value.end_lineno or value.lineno, value.value


def test_no_docstring_needs_the_line_above_it_to_mean_anything() -> None:
    fragment = re.compile(r"(Of|Its|The same|For|Those|That|These|In which|Whose|Which of|By)\b")
    found = [
        f"{path.relative_to(ROOT)}:{line}: {text[:60]}"
        for path in tracked("*.py")
        if path.relative_to(ROOT).parts[0] != "tests"
        for line, _, text in texts(path)
        if fragment.match(text)
    ]
    assert found == []


def test_no_two_classes_share_a_name() -> None:
    places: dict[str, list[str]] = {}
    for path in tracked("sandboxkit/*.py", "providers/*.py", "integrations/*.py"):
        for node in ast.walk(parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name, []).append(str(path.relative_to(ROOT)))
    assert len(places) > 400
    assert {name: found for name, found in places.items() if len(found) > 1} == {}


def test_every_module_says_in_one_sentence_what_it_is() -> None:
    paths = tracked("sandboxkit/*.py", "providers/*.py", "integrations/*.py", "examples/*.py")
    assert len(paths) > 300
    texts = {path: ast.get_docstring(parse(path.read_text())) or "" for path in paths}
    firsts = {str(path.relative_to(ROOT)): text.partition("\n")[0] for path, text in texts.items()}
    assert {path: text for path, text in firsts.items() if not text.endswith((".", ":"))} == {}


def test_importing_takes_less_than_a_tenth_of_a_second_more_than_python_itself() -> None:
    def seconds(code: str) -> float:
        # Processor time: other work on the machine hardly changes it.
        process = os.posix_spawn(sys.executable, [sys.executable, "-c", code], environment)
        _, status, usage = os.wait4(process, 0)
        assert status == 0
        return usage.ru_utime + usage.ru_stime

    # Where nothing may be compiled ahead, an import compiles all of the package each time.
    environment = {**os.environ}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    seconds("import sandboxkit")  # compiles it, if need be
    costs: list[float] = []
    while not costs or (costs[-1] >= 1 and len(costs) < 3):
        programs = ("pass", "import asyncio", "import sandboxkit")
        rounds = [[seconds(code) for code in programs] for _ in range(9)]
        bare, library, ours = (min(each) for each in zip(*rounds, strict=True))  # noise only adds
        slower = max(1.0, (library - bare) / ASYNCIO_SECONDS)
        costs.append((ours - bare) / (IMPORT_SECONDS * slower))
    assert costs[-1] < 1

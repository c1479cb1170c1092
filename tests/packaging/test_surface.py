"""The public surface is written down, files stay short, and importing is quick."""

import ast
import importlib
import inspect
import io
import os
import subprocess
import sys
import tokenize
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PUBLIC_MODULES = ["sandboxkit", "sandboxkit.errors", "sandboxkit.provider", "sandboxkit.types"]
LINES = 500
CORE_CODE_LINES = 3840
LAYOUT = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}
IMPORT_SECONDS = 0.1


def tracked(*patterns: str) -> list[Path]:
    """The files that git knows, and those that it would not ignore."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard", *patterns]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    paths = (ROOT / name for name in sorted(set(done.stdout.split("\0")) - {""}))
    return [path for path in paths if path.is_file() and not path.is_symlink()]


def defined(path: Path) -> set[str]:
    """The public names that a module defines at its top level."""
    names: set[str] = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign):
            names.update(target.id for target in node.targets if isinstance(target, ast.Name))
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names.add(node.target.id)
    return {name for name in names if not name.startswith("_")}


def imported(path: Path) -> set[str]:
    """The names that a package's __init__ imports from its modules."""
    body = ast.parse(path.read_text()).body
    froms = [node for node in body if isinstance(node, ast.ImportFrom)]
    return {alias.asname or alias.name for node in froms for alias in node.names}


@pytest.mark.parametrize("name", PUBLIC_MODULES)
def test_all_is_sorted_and_complete(name: str) -> None:
    module = importlib.import_module(name)
    assert module.__file__ is not None
    path = Path(module.__file__)
    exported: list[str] = module.__all__
    assert exported == sorted(exported)
    # TypeVars are public only by their spelling; what is imported may be passed on.
    own = {each for each in defined(path) if each not in ("T", "OpT")}
    everything = imported(path) if path.name == "__init__.py" else set()
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


@pytest.mark.parametrize(
    "path", tracked("*.py", "*.go", "*.sh", ".ci/run"), ids=lambda path: str(path.relative_to(ROOT))
)
def test_a_file_is_not_too_long(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= LINES


def code_lines(path: Path) -> int:
    """How many lines hold code: neither empty, nor comment, nor docstring."""
    text = path.read_text()
    documented: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        value = node.value if isinstance(node, ast.Expr) else None
        if isinstance(value, ast.Constant) and isinstance(value.value, str):
            documented.update(range(value.lineno, (value.end_lineno or value.lineno) + 1))
    held: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in LAYOUT:
            held.update(range(token.start[0], token.end[0] + 1))
    return len(held - documented)


def test_the_core_stays_small() -> None:
    core = [path for path in tracked("sandboxkit/*.py") if path.parent.name == "sandboxkit"]
    assert len(core) > 10
    assert sum(map(code_lines, core)) < CORE_CODE_LINES


@pytest.mark.parametrize(
    "path",
    tracked("sandboxkit/*.py", "providers/*.py", "integrations/*.py", "examples/*.py"),
    ids=lambda path: str(path.relative_to(ROOT)),
)
def test_a_module_says_in_one_sentence_what_it_is(path: Path) -> None:
    text = ast.get_docstring(ast.parse(path.read_text()))
    assert text, "no module docstring"
    first = text.partition("\n")[0]
    assert first.endswith((".", ":")), first


def test_importing_takes_less_than_a_tenth_of_a_second_more_than_python_itself() -> None:
    def seconds(code: str) -> float:
        # Processor time: other work on the machine hardly changes it.
        process = os.posix_spawn(sys.executable, [sys.executable, "-c", code], os.environ)
        _, status, usage = os.wait4(process, 0)
        assert status == 0
        return usage.ru_utime + usage.ru_stime

    seconds("import sandboxkit")  # compiles it, if need be
    costs: list[float] = []
    while not costs or (costs[-1] >= IMPORT_SECONDS and len(costs) < 3):
        pairs = [(seconds("pass"), seconds("import sandboxkit")) for _ in range(9)]
        bare, ours = (min(each) for each in zip(*pairs, strict=True))  # noise only ever adds
        costs.append(ours - bare)
    assert costs[-1] < IMPORT_SECONDS

"""Each file of the core, and of each provider, can be read without the next: no import circles."""

import ast
import graphlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandboxkit.integrations.rewards._parse import parse

ROOT = Path(__file__).resolve().parents[2]


def modules() -> dict[str, Path]:
    """The modules of the core and of the providers, which alone have no circle."""
    found = {}
    for path in [*(ROOT / "sandboxkit").glob("*.py"), *(ROOT / "providers").rglob("*.py")]:
        parts = list(path.relative_to(ROOT).with_suffix("").parts)
        if parts[0] != "sandboxkit":
            parts.insert(0, "sandboxkit")
        if parts[-1] == "__init__":
            parts.pop()
        found[".".join(parts)] = path
    return found


def imported(code: str, known: set[str]) -> Iterator[str]:
    """What a module imports of `known`, in functions and for types alone as well."""
    for node in ast.walk(parse(code)):
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            names = []
            for alias in node.names:
                whole = f"{node.module}.{alias.name}"
                names.append(whole if whole in known else node.module)
        else:
            continue
        yield from (name for name in names if name in known)


def circle(graph: dict[str, set[str]]) -> list[str]:
    """The modules of one circle, each importing the next; none where there is no circle."""
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        found: list[str] = error.args[1]
        return found[::-1]
    return []


def test_no_module_imports_one_that_imports_it() -> None:
    paths = modules()
    assert len(paths) > 50
    graph = {name: set(imported(path.read_text(), set(paths))) for name, path in paths.items()}
    assert graph["sandboxkit.provider"] >= {"sandboxkit.errors", "sandboxkit.types"}
    assert " -> ".join(circle(graph)) == ""


@pytest.mark.parametrize(
    "code",
    [
        "import pack.b",
        "from pack import b",
        "from pack.b import name",
        "def f():\n    from pack import b",
        "if TYPE_CHECKING:\n    from pack.b import name",
    ],
)
def test_a_circle_is_found_however_it_is_imported(code: str) -> None:
    known = {"pack.a", "pack.b"}
    graph = {"pack.a": set(imported(code, known)), "pack.b": {"pack.a"}}
    assert set(circle(graph)) == known

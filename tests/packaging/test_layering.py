"""Imports point one way: examples -> integrations -> sandboxkit <- providers."""

import ast
import subprocess
import sys
from collections.abc import Callable, Collection, Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

import pytest

from sandboxkit.integrations.rewards._parse import parse

ROOT = Path(__file__).resolve().parents[2]
STDLIB = sys.stdlib_module_names
CORE = sorted(
    path
    for part in (".", "_room", "_life", "_calls", "display")
    for path in (ROOT / "sandboxkit" / part).glob("*.py")
)
CLI, TESTING, PROVIDERS, INTEGRATIONS, EXAMPLES = (
    sorted((ROOT / folder).rglob("*.py"))
    for folder in ("sandboxkit/cli", "sandboxkit/testing", "providers", "integrations", "examples")
)
SHARED_TOOLS = [
    "_extras",
    "_lines",
    "_rows",
    "_option_fields",
    "_outages",
    "_retries",
    "_service",
    "_tools",
    "_training",
]
SHARED_BY_PROVIDERS = (
    "_agent",
    "_builders",
    "_capabilities",
    "_error_rules",
    "_gvisor",
    "_hosted",
    "_rules",
)
SPI = ("sandboxkit.provider", "sandboxkit.types", "sandboxkit.errors")


def imports(path: Path) -> Iterator[str]:
    """Every module that a file imports, `from package import module` as package.module too."""
    for node in ast.walk(parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            assert node.module is not None
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def under(name: str, *packages: str) -> bool:
    return any(name == package or name.startswith(f"{package}.") for package in packages)


def third_party(path: Path) -> set[str]:
    tops = {name.partition(".")[0] for name in imports(path)}
    return tops - STDLIB - {"sandboxkit"}


def offenders(paths: list[Path], wrong: Callable[[Path], Collection[str]]) -> dict[str, list[str]]:
    """All files that import what they must not, each with the names of that."""
    assert len(paths) > 3
    found = {str(path.relative_to(ROOT)): sorted(wrong(path)) for path in paths}
    return {path: names for path, names in found.items() if names}


def wrong_in_the_core(path: Path) -> set[str]:
    main = path.name == "__main__.py"
    others = ("sandboxkit.testing", "sandboxkit.cli") if not main else ("sandboxkit.testing",)
    return {name for name in imports(path) if under(name, *others)} | wrong_on_the_core(path, "")


def wrong_on_the_core(path: Path, added: str | None = None) -> set[str]:
    added = ("rich" if path in CLI else "pytest") if added is None else added
    others = ("sandboxkit.providers", "sandboxkit.integrations")
    return (third_party(path) - {"anyio", added}) | {n for n in imports(path) if under(n, *others)}


def wrong_in_a_provider(path: Path) -> set[str]:
    own = (path.relative_to(ROOT).parts[1], *SHARED_BY_PROVIDERS)
    known = (*SPI, *(f"sandboxkit.providers.{name}" for name in own))
    names = {name for name in imports(path) if under(name, "sandboxkit")}
    return {name for name in names if not under(name, *known)} - {"sandboxkit.providers"}


def wrong_in_an_integration(path: Path) -> set[str]:
    # An integration has its own private modules, and the tools that several share.
    inside = path in INTEGRATIONS
    tops = (*path.relative_to(ROOT).parts[1:2], *SHARED_TOOLS) if inside else ()
    own = [f"sandboxkit.integrations.{top}" for top in tops]
    ours = {name for name in imports(path) if under(name, "sandboxkit")}
    private = {name for name in ours if any(part[0] == "_" for part in name.split("."))}
    others = ("sandboxkit.providers", "examples") if inside else ("sandboxkit.providers",)
    return {name for name in private if not under(name, *own)} | {
        name for name in imports(path) if under(name, *others)
    }


@pytest.mark.parametrize(
    ("paths", "wrong"),
    [
        pytest.param(CORE, wrong_in_the_core, id="core: anyio alone, and no provider"),
        pytest.param(CLI, wrong_on_the_core, id="command line: rich, and no provider"),
        pytest.param(TESTING, wrong_on_the_core, id="testing: pytest, and no provider"),
        pytest.param(PROVIDERS, wrong_in_a_provider, id="providers: the contract"),
        pytest.param(
            [*INTEGRATIONS, *EXAMPLES], wrong_in_an_integration, id="integrations: public names"
        ),
    ],
)
def test_a_layer_imports_only_what_it_may_know(
    paths: list[Path], wrong: Callable[[Path], Collection[str]]
) -> None:
    assert offenders(paths, wrong) == {}


def test_what_trainers_share_knows_none_of_them_and_needs_no_library() -> None:
    names = ("art", "grpo", "trainers", "trl", "verifiers")
    trainers = [f"sandboxkit.integrations.{name}" for name in names]
    shared = sorted((ROOT / "integrations" / "_training").glob("*.py"))
    assert offenders(shared, third_party) == {}
    for path in (*shared, *(ROOT / "integrations" / "trl").glob("*.py")):
        others = [each for each in trainers if each.rpartition(".")[2] != path.parent.name]
        assert not [name for name in imports(path) if under(name, *others)], path


def test_training_libraries_stay_in_integrations_one_example_and_the_toys() -> None:
    trainers = {ROOT / "examples" / "rl_training" / "trl_grpo.py"}
    trainers |= set((ROOT / "examples" / "grpo" / "toys").glob("*.py"))
    for path in {*CORE, *CLI, *TESTING, *PROVIDERS, *EXAMPLES} - trainers:
        assert not {"torch", "vllm", "trl", "transformers", "tests"} & third_party(path), path


@pytest.mark.parametrize("types", [False, True], ids=["at run time", "for types, too"])
def test_no_module_imports_itself_through_others_not_even_within_a_function(types: bool) -> None:
    """Imports for types may make a circle beyond the core's files and the providers."""
    modules = {}
    folders = ("sandboxkit", "providers", "integrations")
    for path in (path for each in folders for path in (ROOT / each).rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        parts = parts if parts[0] == "sandboxkit" else ("sandboxkit", *parts)
        if not types or path.parent == ROOT / "sandboxkit" or path in PROVIDERS:
            modules[".".join(parts).removesuffix(".__init__")] = path
    assert len(modules) > (150 if types else 300)
    graph = {
        name: needed(path.read_text(), modules, types) - {name} for name, path in modules.items()
    }
    # Raises CycleError, which names the modules of a circle in their order.
    TopologicalSorter(graph).prepare()


def needed(code: str, modules: Collection[str], types: bool) -> set[str]:
    """The modules, of these, that a file imports when it is imported or later."""
    found: set[str] = set()
    nodes: list[ast.AST] = [parse(code)]
    while nodes:
        node = nodes.pop()
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            # What is no module of the package is defined in the package's own file.
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= names if names <= set(modules) else {*names, str(node.module)}
        elif not types and isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            nodes += node.orelse
        else:
            nodes += ast.iter_child_nodes(node)
    return found & set(modules)


def test_a_circle_is_found_however_it_is_imported() -> None:
    for code in (
        "import pack.b",
        "from pack import b",
        "from pack.b import name",
        "def f():\n    from pack import b",
        "if TYPE_CHECKING:\n    from pack.b import name",
    ):
        graph = {"pack.a": needed(code, {"pack.a", "pack.b"}, True), "pack.b": {"pack.a"}}
        with pytest.raises(CycleError):
            TopologicalSorter(graph).prepare()


def test_nothing_imports_the_folders_past_the_package() -> None:
    ours = [*CORE, *CLI, *TESTING, *PROVIDERS, *INTEGRATIONS, *EXAMPLES]
    for path in (*ours, *(ROOT / "tests").rglob("*.py")):
        wrong = [name for name in imports(path) if under(name, "providers", "integrations")]
        assert not wrong, path
    for name in ("providers", "integrations"):
        assert (ROOT / "sandboxkit" / name).readlink() == Path("..", name)


def test_importing_the_core_loads_anyio_and_the_standard_library_alone() -> None:
    code = "import sys; before = {*sys.modules}; import sandboxkit; print(*{*sys.modules} - before)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    ours = {name.partition(".")[0] for name in done.stdout.split()} - STDLIB
    assert ours - {"idna", "sniffio", "typing_extensions"} == {"anyio", "sandboxkit"}  # anyio's own


def test_emulators_know_nothing_of_the_adapters() -> None:
    """Docker may be the machine under one."""
    for path in (ROOT / "tests" / "emulators").rglob("*.py"):
        names = [n for n in imports(path) if under(n, "sandboxkit.providers")]
        assert all(under(n, "sandboxkit.providers.docker") for n in names), path

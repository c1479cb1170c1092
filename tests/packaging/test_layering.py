"""Imports point one way: examples -> integrations -> sandboxkit <- providers."""

import ast
import subprocess
import sys
from collections.abc import Callable, Collection, Iterator
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

from sandboxkit.integrations.rewards._parse import parse

ROOT = Path(__file__).resolve().parents[2]
STDLIB = sys.stdlib_module_names
CORE = sorted(
    path for part in (".", "display") for path in (ROOT / "sandboxkit" / part).glob("*.py")
)
CLI = sorted((ROOT / "sandboxkit" / "cli").rglob("*.py"))
TESTING = sorted((ROOT / "sandboxkit" / "testing").rglob("*.py"))
PROVIDERS = sorted((ROOT / "providers").rglob("*.py"))
INTEGRATIONS = sorted((ROOT / "integrations").rglob("*.py"))
EXAMPLES = sorted((ROOT / "examples").rglob("*.py"))
SHARED_TOOLS = (
    "_extras",
    "_lines",
    "_option_fields",
    "_outages",
    "_retries",
    "_service",
    "_tools",
    "_training",
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


def test_the_core_uses_anyio_alone_and_knows_no_provider() -> None:
    def wrong(path: Path) -> set[str]:
        others = ["sandboxkit.providers", "sandboxkit.integrations", "sandboxkit.testing"]
        if path.name != "__main__.py":
            others.append("sandboxkit.cli")
        return (third_party(path) - {"anyio"}) | {n for n in imports(path) if under(n, *others)}

    assert offenders(CORE, wrong) == {}


@pytest.mark.parametrize(
    ("paths", "added"), [(CLI, "rich"), (TESTING, "pytest")], ids=["command line", "testing"]
)
def test_what_stands_on_the_core_adds_one_library_and_knows_no_provider(
    paths: list[Path], added: str
) -> None:
    def wrong(path: Path) -> set[str]:
        others = ("sandboxkit.providers", "sandboxkit.integrations")
        names = {name for name in imports(path) if under(name, *others)}
        return (third_party(path) - {"anyio", added}) | names

    assert offenders(paths, wrong) == {}


def test_a_provider_knows_the_contract_and_what_providers_share() -> None:
    def wrong(path: Path) -> set[str]:
        own = f"sandboxkit.providers.{path.relative_to(ROOT).parts[1]}"
        names = ("_agent", "_error_rules", "_gvisor", "_hosted", "_rules")
        shared = [f"sandboxkit.providers.{name}" for name in names]
        known = {"sandboxkit.providers"}
        known |= {name for name in imports(path) if under(name, *SPI, *shared, own)}
        return {name for name in imports(path) if under(name, "sandboxkit")} - known

    assert offenders(PROVIDERS, wrong) == {}


def test_integrations_and_examples_use_public_names_and_no_provider() -> None:
    def wrong(path: Path) -> list[str]:
        # An integration's own private modules, and the tools that several share.
        tops = (*path.relative_to(ROOT).parts[1:2], *SHARED_TOOLS)
        own = [f"sandboxkit.integrations.{top}" for top in tops]
        inside = path in INTEGRATIONS
        return [
            name
            for name in imports(path)
            if under(name, "sandboxkit.providers")
            or (inside and under(name, "examples"))
            or (private(name) and not (inside and under(name, *own)))
        ]

    def private(name: str) -> bool:
        return under(name, "sandboxkit") and any(part[0] == "_" for part in name.split("."))

    assert offenders([*INTEGRATIONS, *EXAMPLES], wrong) == {}


def test_all_offenders_are_named_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules[__name__], "ROOT", tmp_path)
    paths = [tmp_path / f"{number}.py" for number in range(4)]
    for path, code in zip(
        paths, ("import anyio", "import rich", "import os", "from rich import text"), strict=True
    ):
        path.write_text(code)
    found = offenders(paths, lambda path: third_party(path) - {"anyio"})
    assert found == {"1.py": ["rich"], "3.py": ["rich"]}


def test_what_trainers_share_knows_none_of_them_and_needs_no_library() -> None:
    trainers = [
        f"sandboxkit.integrations.{name}"
        for name in ("art", "grpo", "trainers", "trl", "verifiers")
    ]
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


def test_no_module_imports_itself_through_others_not_even_within_a_function() -> None:
    """An import `if TYPE_CHECKING` does not count: a Sandbox returns a Terminal, which keeps it."""
    modules = {}
    for path in (
        path
        for each in ("sandboxkit", "providers", "integrations")
        for path in (ROOT / each).rglob("*.py")
    ):
        parts = path.relative_to(ROOT).with_suffix("").parts
        parts = parts if parts[0] == "sandboxkit" else ("sandboxkit", *parts)
        modules[".".join(parts).removesuffix(".__init__")] = path
    assert len(modules) > 300
    graph = {name: needed(path, modules) - {name} for name, path in modules.items()}
    # Raises CycleError, which names the modules of a circle in their order.
    TopologicalSorter(graph).prepare()


def needed(path: Path, modules: Collection[str]) -> set[str]:
    """The modules, of these, that a file imports when it is imported or later."""
    found: set[str] = set()
    nodes: list[ast.AST] = [parse(path.read_text())]
    while nodes:
        node = nodes.pop()
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            # What is no module of the package is defined in the package's own file.
            names = {f"{node.module}.{alias.name}" for alias in node.names}
            found |= names if names <= set(modules) else {*names, str(node.module)}
        elif isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            nodes += node.orelse
        else:
            nodes += ast.iter_child_nodes(node)
    return found & set(modules)


def test_nothing_imports_the_folders_past_the_package() -> None:
    ours = [*CORE, *CLI, *TESTING, *PROVIDERS, *INTEGRATIONS, *EXAMPLES]
    for path in (*ours, *(ROOT / "tests").rglob("*.py")):
        wrong = [name for name in imports(path) if under(name, "providers", "integrations")]
        assert not wrong, path


def test_the_linked_folders_are_committed_as_links() -> None:
    for name in ("providers", "integrations"):
        link = ROOT / "sandboxkit" / name
        assert link.is_symlink()
        assert link.readlink() == Path("..", name)


def test_importing_the_core_loads_anyio_and_the_standard_library_alone() -> None:
    def loaded(statement: str) -> set[str]:
        code = (
            f"{statement}\nimport sys\nprint(*{{name.partition('.')[0] for name in sys.modules}})"
        )
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        )
        return set(done.stdout.split())

    ours = loaded("import sandboxkit") - loaded("pass") - STDLIB
    assert ours - {"idna", "sniffio", "typing_extensions"} == {"anyio", "sandboxkit"}  # anyio's own


def test_emulators_know_nothing_of_the_adapters() -> None:
    """Docker may be the machine under one."""
    for path in (ROOT / "tests" / "emulators").rglob("*.py"):
        names = [n for n in imports(path) if under(n, "sandboxkit.providers")]
        assert all(under(n, "sandboxkit.providers.docker") for n in names), path

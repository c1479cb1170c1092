"""Imports point one way: examples -> integrations -> sandboxkit <- providers."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

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
_GRPO = "sandboxkit.integrations.grpo"
SPI = ("sandboxkit.provider", "sandboxkit.types", "sandboxkit.errors")


def imports(path: Path) -> Iterator[str]:
    """Every module that a file imports, `from package import module` as package.module too."""
    for node in ast.walk(ast.parse(path.read_text())):
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


@pytest.mark.parametrize("path", CORE, ids=lambda path: path.name)
def test_the_core_uses_anyio_alone_and_knows_no_provider(path: Path) -> None:
    assert third_party(path) <= {"anyio"}
    for name in imports(path):
        assert not under(
            name, "sandboxkit.providers", "sandboxkit.integrations", "sandboxkit.testing"
        )
        assert path.name == "__main__.py" or not under(name, "sandboxkit.cli")


@pytest.mark.parametrize("path", CLI, ids=lambda path: path.name)
def test_the_command_line_adds_rich_alone_and_knows_no_provider(path: Path) -> None:
    assert third_party(path) <= {"anyio", "rich"}
    assert not [
        n for n in imports(path) if under(n, "sandboxkit.providers", "sandboxkit.integrations")
    ]


@pytest.mark.parametrize("path", TESTING, ids=lambda path: path.name)
def test_the_testing_package_adds_pytest_alone_and_knows_no_provider(path: Path) -> None:
    assert third_party(path) <= {"anyio", "pytest"}
    assert not [
        n for n in imports(path) if under(n, "sandboxkit.providers", "sandboxkit.integrations")
    ]


@pytest.mark.parametrize("path", PROVIDERS, ids=lambda path: str(path.relative_to(ROOT)))
def test_a_provider_knows_the_contract_and_what_providers_share(path: Path) -> None:
    own = f"sandboxkit.providers.{path.relative_to(ROOT).parts[1]}"
    shared = [f"sandboxkit.providers.{name}" for name in ("_agent", "_hosted")]
    for name in imports(path):
        if under(name, "sandboxkit") and name not in ("sandboxkit.providers",):
            assert under(name, *SPI, *shared, own), name


@pytest.mark.parametrize(
    "path", [*INTEGRATIONS, *EXAMPLES], ids=lambda path: str(path.relative_to(ROOT))
)
def test_integrations_and_examples_use_public_names_and_no_provider(path: Path) -> None:
    # An integration's own private modules, and the tools that several share.
    own = [
        f"sandboxkit.integrations.{part}"
        for part in (*path.relative_to(ROOT).parts[1:2], "_extras", "_kept", "_outages", "_tools")
    ]
    for name in imports(path):
        assert not under(name, "sandboxkit.providers")
        if path not in INTEGRATIONS or not under(name, *own):
            assert not under(name, "sandboxkit") or not any(
                part.startswith("_") for part in name.split(".")
            ), name
        assert path not in INTEGRATIONS or not under(name, "examples")


def test_what_the_integration_of_trl_shares_with_the_other_trainer_trains_nothing() -> None:
    grpo, names = ROOT / "integrations" / "grpo", {"clock", "records", "whole"}
    for path in (ROOT / "integrations" / "trl").glob("*.py"):
        found = [name.split(".") for name in imports(path) if under(name, _GRPO)]
        assert {name[3] for name in found if len(name) > 3} <= names, path
    for name in names:
        assert not third_party(grpo / f"{name}.py")
        own = [each for each in imports(grpo / f"{name}.py") if under(each, "sandboxkit")]
        assert all(under(each, *(f"{_GRPO}.{other}" for other in names)) for each in own)


def test_training_libraries_stay_in_integrations_one_example_and_the_toys() -> None:
    trainers = {ROOT / "examples" / "rl_training" / "trl_grpo.py"}
    trainers |= set((ROOT / "examples" / "grpo" / "toys").glob("*.py"))
    for path in {*CORE, *CLI, *TESTING, *PROVIDERS, *EXAMPLES} - trainers:
        assert not {"torch", "vllm", "trl", "transformers", "tests"} & third_party(path), path


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

"""Each range of versions that the package asks for admits the version with which its tests run."""

import importlib.metadata
import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
RANGES = sorted(
    {
        requirement
        for extra in (PROJECT["dependencies"], *PROJECT["optional-dependencies"].values())
        for requirement in extra
        if not requirement.startswith(PROJECT["name"])
    }
)


def version_in_use(name: str) -> str | None:
    """Return the version that is installed here, or that a script installs apart; None for neither."""
    if name == "vllm":
        found = re.search(r"^VERSION=(.+)$", (ROOT / "scripts/vllm-cpu.sh").read_text(), re.M)
        return found and found[1]
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


@pytest.mark.parametrize("text", RANGES)
def test_a_range_admits_what_the_tests_run_with(text: str) -> None:
    wanted = Requirement(text)
    assert re.search(r"<|==|~=", str(wanted.specifier)), "a range has an upper bound"
    version = version_in_use(wanted.name)
    if version is None:  # an environment apart: the Makefile installs it with the same range
        assert f"'{text.partition(';')[0]}'" in (ROOT / "Makefile").read_text()
    else:
        assert wanted.specifier.contains(version), version

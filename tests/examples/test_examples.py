"""Every example runs as a program of its own and prints exactly what it should."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docker_here import docker_problem, require_docker

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
EXPECTED = Path(__file__).parent / "expected"
UNORDERED = {"reward_function"}  # prints results in the order in which they complete
LOCAL_ONLY = {"install_then_test"}  # it needs pip, which Python in the tests' image lacks
PROVIDERS = ("local", "docker")
EACH_TIME = {"quickstart", "parallel_batch", "reward_function"}
"""The examples that run on docker each time. The others do so at night, and on local each time."""

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(params=PROVIDERS)
def provider(request: pytest.FixtureRequest) -> str:
    name = str(request.param)
    if name == "docker":
        require_docker()
    return name


def run_example(path: Path, provider: str, *arguments: str, warnings: str = "error") -> str:
    """Run an example as a user would, warnings being errors; return what it printed."""
    environment = {"SANDBOXKIT_DOCKER_IMAGE": "sandboxkit/python:3.11", **os.environ}
    environment["SANDBOXKIT_PROVIDER"] = provider
    command = [sys.executable, "-W", warnings, str(path), *arguments]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


@pytest.mark.parametrize(
    ("path", "provider"),
    [
        pytest.param(
            path,
            provider,
            id=f"{provider}-{path.stem}",
            marks=() if provider == "local" or path.stem in EACH_TIME else pytest.mark.nightly,
        )
        for path in EXAMPLES
        for provider in PROVIDERS
        if path.stem != "swap_provider" and (provider == "local" or path.stem not in LOCAL_ONLY)
    ],
    indirect=["provider"],
)
def test_an_example_prints_exactly_what_is_expected(path: Path, provider: str) -> None:
    printed = re.sub(r"\d+\.\d\d s$", "N s", run_example(path, provider), flags=re.M).splitlines()
    expected = (EXPECTED / f"{path.stem}.txt").read_text().splitlines()
    if path.stem in UNORDERED:
        assert printed[-1] == expected[-1]
        printed, expected = sorted(printed), sorted(expected)
    assert printed == expected


def test_swapping_the_provider_changes_nothing_but_its_name(provider: str) -> None:
    path = ROOT / "examples" / "swap_provider.py"
    expected = f"{provider}: Linux /workspace 0\n"
    assert run_example(path, provider) == expected
    assert run_example(path, "no-such-provider", provider) == expected


def test_one_program_runs_on_every_provider_in_turn() -> None:
    names = [name for name in PROVIDERS if name != "docker" or not docker_problem()]
    printed = run_example(ROOT / "examples" / "swap_provider.py", "local", *names)
    assert printed == "".join(f"{name}: Linux /workspace 0\n" for name in names)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_is_short_and_says_what_it_shows(path: Path) -> None:
    text = path.read_text()
    assert text.startswith('"""')
    assert len(text.splitlines()) <= 80


def test_every_expected_output_belongs_to_an_example() -> None:
    outputs = {path.stem for path in EXPECTED.glob("*.txt")} | {"swap_provider"}
    assert outputs == {path.stem for path in EXAMPLES}

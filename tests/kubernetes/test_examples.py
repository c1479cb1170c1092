"""The examples run in a cluster as they do anywhere else."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kubernetes.here import new_namespace, program

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
EXPECTED = EXAMPLES.parent / "tests" / "examples" / "expected"

pytestmark = pytest.mark.timeout(240)


@pytest.fixture(scope="module", autouse=True)
def namespace() -> Iterator[str]:
    """A namespace for all of them."""
    with new_namespace() as name:
        yield name


@pytest.mark.parametrize("name", ["quickstart", "files", "streaming", "reconnect"])
def test_an_example_prints_exactly_what_is_expected(name: str) -> None:
    assert program(EXAMPLES / f"{name}.py") == (EXPECTED / f"{name}.txt").read_text()


def test_swapping_the_provider_changes_nothing_but_its_name() -> None:
    assert program(EXAMPLES / "swap_provider.py") == "kubernetes: Linux /workspace 0\n"

"""One sandbox of each provider for all attacks, as long as resets keep it clean."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sandboxkit.errors import SandboxError
from tests.docker_here import require_docker
from tests.reset.attacks import ATTACKS
from tests.reset.jobs import Mode, Target
from tests.reset.mutants import MUTANTS

WAYS: tuple[Mode, ...] = ("exec", "python")
TARGETS = [(name, mode) for mode in WAYS for name in ("local", "docker")]


def each_time(test: str, name: str, where: tuple[str, Mode]) -> bool:
    """Whether an attack is tried there each time, not by `make nightly` alone.

    Each attack meets one target, and the next attack another; where it shows that a reset lacks a
    step, it is tried with the mutant's provider as well.
    """
    anywhere = test == "test_nothing_reaches_the_next_job"
    places = [at for at in TARGETS if at[1] == "exec" or anywhere]
    turn = places[list(ATTACKS).index(name) % len(places)]
    shows = {(each.provider, "exec") for each in MUTANTS if each.shown_by == name}
    return where == turn or where in shows


_ATTACKS_FILE = Path(__file__).with_name("test_attacks.py")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if isinstance(item, pytest.Function) and item.path == _ATTACKS_FILE:
            given: dict[str, Any] = getattr(getattr(item, "callspec", None), "params", {})
            where = given.get("target") or given.get("commands")
            if where and not each_time(item.originalname, given["name"], where):
                item.add_marker(pytest.mark.nightly)


def ready(name: str, mode: Mode, workdir: str | None = None) -> Target:
    if name == "docker":
        require_docker()
    target = Target(name, mode, workdir)
    try:
        target.sandbox()
    except BaseException as error:
        target.close()
        if isinstance(error, SandboxError) and mode == "python" and "not implemented" in str(error):
            pytest.xfail(f"no interpreter yet: {error}")
        raise
    return target


def _targets(places: Iterable[tuple[str, Any]]) -> Any:  # Any: a fixture
    @pytest.fixture(scope="module", params=places, ids="-".join)
    def each(request: pytest.FixtureRequest) -> Iterator[Target]:
        target = ready(*request.param)
        yield target
        target.close()

    return each


target = _targets(TARGETS)
commands = _targets([each for each in TARGETS if each[1] == "exec"])

"""A sandbox of each provider for all tests of a file, and a terminal for each test."""

from collections.abc import Iterator

import pytest

from sandboxkit import Sandbox, Session
from sandboxkit.terminal import Terminal
from tests.docker_here import require_docker


@pytest.fixture(scope="module", params=["local", pytest.param("docker", marks=pytest.mark.nightly)])
def box(request: pytest.FixtureRequest) -> Iterator[Sandbox]:
    name = str(request.param)
    options = {"image": require_docker()} if name == "docker" else {}
    with Session(name, **options) as session:  # type: ignore[arg-type]  # an option of SandboxSpec
        yield session.sandbox().start().result(60)


@pytest.fixture
def terminal(box: Sandbox) -> Iterator[Terminal]:
    with box.terminal() as terminal:
        yield terminal

"""The session of the tests: on local, unless a test has the parameter `provider`."""

from collections.abc import Iterator

import pytest

from sandboxkit import Session
from tests.docker_here import require_docker

USER = "docker, another user"


@pytest.fixture
def provider() -> str:
    return "local"


@pytest.fixture
def session(provider: str) -> Iterator[Session]:
    name, _, another = provider.partition(",")
    if name == "docker":
        require_docker()
    with Session(name, tags=("swe-tests",), user="65534" if another else None) as session:
        yield session

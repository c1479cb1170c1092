"""One sandbox of each provider for all attacks, as long as resets keep it clean."""

from collections.abc import Iterator

import pytest

from sandboxkit.errors import SandboxError
from tests.docker_here import require_docker
from tests.reset.jobs import Mode, Target

TARGETS: list[tuple[str, Mode]] = [
    ("local", "exec"),
    ("docker", "exec"),
    ("local", "python"),
    ("docker", "python"),
]


def ready(name: str, mode: Mode, workdir: str | None = None) -> Target:
    """A target whose first sandbox runs."""
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


@pytest.fixture(scope="module", params=TARGETS, ids="-".join)
def target(request: pytest.FixtureRequest) -> Iterator[Target]:
    """Each provider, and each way to run jobs."""
    target = ready(*request.param)
    yield target
    target.close()


@pytest.fixture(
    scope="module", params=[each for each in TARGETS if each[1] == "exec"], ids="-".join
)
def commands(request: pytest.FixtureRequest) -> Iterator[Target]:
    """Each provider, with jobs that are commands."""
    target = ready(*request.param)
    yield target
    target.close()

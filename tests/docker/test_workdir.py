"""The folder where commands start, in images whose user is not root."""

import subprocess
from collections.abc import Iterator

import pytest

from sandboxkit import SandboxStartError, Session
from tests.docker_here import TEST_IMAGE

pytestmark = pytest.mark.usefixtures("daemon")

_IMAGE = "sandboxkit-tests/of-a-user"
_DOCKERFILE = f"""
FROM {TEST_IMAGE}
RUN useradd --create-home --uid 1234 app && chmod 700 /home/app && rm -rf /workspace
USER app
"""


@pytest.fixture(scope="module")
def image() -> Iterator[str]:
    """An image of a user whose home nobody else may enter, without /workspace."""
    subprocess.run(
        ["docker", "build", "--quiet", "--tag", _IMAGE, "-"],
        input=_DOCKERFILE.encode(),
        stdout=subprocess.DEVNULL,
        check=True,
    )
    yield _IMAGE
    subprocess.run(["docker", "rmi", "--force", _IMAGE], stdout=subprocess.DEVNULL, check=True)


@pytest.mark.parametrize(
    ("workdir", "found"),
    [
        (None, "/workspace"),
        ("/home/app/work", "/home/app/work"),
        ("/home/app/a/b", "/home/app/a/b"),
        ("/srv/work", "/srv/work"),
    ],
)
def test_the_workdir_belongs_to_the_user(image: str, workdir: str | None, found: str) -> None:
    with Session("docker", image=image) as session, session.sandbox(workdir=workdir) as sandbox:
        script = "touch file && id -un && pwd"
        assert sandbox.exec(["sh", "-c", script]).result(30).stdout == f"app\n{found}\n"
        assert sandbox.workdir().result(30) == found


def test_a_workdir_that_cannot_be_made_names_the_user_and_the_folder(image: str) -> None:
    with (
        Session("docker", image=image) as session,
        pytest.raises(SandboxStartError, match=r"/etc/passwd/work.*app"),
    ):
        session.sandbox(workdir="/etc/passwd/work").start().result(30)

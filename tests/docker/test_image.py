"""A sandbox on docker takes from its image the folder in which commands start, and its accounts."""

import secrets
import subprocess
from collections.abc import Iterator
from typing import Any, Literal

import pytest

from sandboxkit import Session
from tests.docker.conftest import docker
from tests.docker_here import TEST_IMAGE, require_docker, require_gvisor

PATIENCE = 60.0
RECIPE = f"""FROM {TEST_IMAGE}
WORKDIR /app
RUN echo of the image >file && printf 'app:x:4321:4321::/app:/bin/sh' >>/etc/passwd
"""
PRIVATE = "RUN mkdir -m 700 /home/app && mkdir /home/app/in && chown -R 4321 /home/app\nWORKDIR /home/app/in\n"


def built(recipe: str) -> Iterator[str]:
    """Build an image, which is removed in the end."""
    require_docker()
    tag = f"sandboxkit/image-{secrets.token_hex(6)}:test"
    own = recipe.replace(
        "\n", f"\nLABEL of={tag}\n", 1
    )  # no layers of others, who remove them with their images
    subprocess.run(["docker", "build", "-qt", tag, "-"], input=own.encode(), check=True)
    yield tag
    docker("rmi", "-f", tag)


@pytest.fixture(scope="module")
def image() -> Iterator[str]:
    """An image with a WORKDIR, a file there, and accounts whose last line has no end."""
    yield from built(RECIPE)


@pytest.fixture(scope="module")
def private(image: str) -> Iterator[str]:
    """One with a WORKDIR that user 4321 alone may enter."""
    yield from built(f"FROM {image}\n{PRIVATE}")


def test_commands_and_file_calls_begin_in_the_workdir_of_the_image(image: str) -> None:
    with Session("docker", image=image) as session, session.sandbox() as sandbox:
        assert sandbox.workdir().result(PATIENCE) == "/app"
        assert sandbox.read_text("file").result(PATIENCE) == "of the image\n"
        assert sandbox.exec(["cat", "file"]).result(PATIENCE).stdout == "of the image\n"
        sandbox.write_file("/workspace/own", "there as well").result(PATIENCE)


@pytest.mark.parametrize("options", [{"workdir": "/other"}, {"profile": "strict"}])
def test_a_workdir_that_is_asked_for_or_has_to_be_writable_is_another(
    image: str, options: dict[str, Any]
) -> None:
    with Session("docker", image=image, **options) as session:
        found = session.run(["sh", "-c", "pwd; touch own; cat /app/file"]).result(PATIENCE).stdout
    assert found == f"{options.get('workdir', '/workspace')}\nof the image\n"


@pytest.mark.parametrize("isolation", [None, "gvisor"])
def test_a_user_that_may_not_enter_the_workdir_of_the_image_has_another(
    private: str, isolation: Literal["gvisor"] | None
) -> None:
    if isolation == "gvisor":
        require_gvisor()
    with Session("docker", image=private, isolation=isolation) as session:
        own, other = session.sandbox(user="4321"), session.sandbox(user="12345")
        own.write_file("file", "x").result(PATIENCE)
        other.write_file("file", "x").result(PATIENCE)
        assert own.workdir().result(PATIENCE) == "/home/app/in"
        assert other.workdir().result(PATIENCE) == "/workspace"


@pytest.mark.parametrize("workdir", [None, "/other"])
def test_a_snapshot_keeps_the_workdir_of_the_image(image: str, workdir: str | None) -> None:
    with Session("docker", image=image) as session, session.sandbox(workdir=workdir) as sandbox:
        sandbox.write_file("/app/file", "changed").result(PATIENCE)
        snapshot = sandbox.snapshot(ttl=300).result(PATIENCE)
        try:
            with session.sandbox(snapshot=snapshot) as later:
                assert later.read_text("file").result(PATIENCE) == "changed"
        finally:
            snapshot.delete().result(PATIENCE)


@pytest.mark.parametrize(
    ("user", "added"),
    [
        ("12345", "\n12345:x:12345:0::/workspace:/bin/sh\n"),
        ("12345:7", "\n12345:x:12345:7::/workspace:/bin/sh\n"),
        ("4321", ""),
    ],
)
def test_a_user_has_an_account_whatever_its_uid(image: str, user: str, added: str) -> None:
    with Session("docker", image=image, user=user) as session, session.sandbox() as sandbox:
        found = sandbox.exec(["sh", "-c", "id -un; echo ~"]).result(PATIENCE).stdout
        accounts = sandbox.read_text("/etc/passwd").result(PATIENCE)
    assert found == f"{'12345' if added else 'app'}\n/workspace\n"
    assert accounts.endswith(f"\napp:x:4321:4321::/app:/bin/sh{added}")

"""Volumes on a Docker daemon: which are ours, and what killed clients leave."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandboxkit import ConfigurationError, Operation, Session, Volume, VolumeError
from sandboxkit.providers.docker import DockerProvider
from sandboxkit.testing.conformance._base import until
from tests.docker.test_datasets import docker

pytestmark = pytest.mark.usefixtures("daemon")
KILLED = """
import os, signal, sys
import sandboxkit
from sandboxkit.providers.docker import _volumes
def killed(name):
    os.kill(os.getpid(), signal.SIGKILL)
_volumes._writable_folder = killed
with sandboxkit.Session("docker", mounts={"/cache": sandboxkit.Volume(sys.argv[1])}) as session:
    session.run(["true"]).result()
"""


@pytest.fixture
def volume(tag: str) -> Iterator[Volume]:
    """A volume, which is removed in the end."""
    found = Volume(f"test-{tag[:20].lower()}")
    yield found
    subprocess.run(["docker", "volume", "rm", "--force", on_daemon(found)], check=True)


def on_daemon(volume: Volume) -> str:
    return f"sandboxkit-volume-{volume.name}"


def containers(volume: Volume) -> list[str]:
    """Docker's arguments that list the containers that refer to a volume."""
    return ["ps", "--all", "--quiet", "--filter", f"volume={on_daemon(volume)}"]


def remove(volume: Volume) -> None:
    Operation(DockerProvider().remove_volume(volume.name)).result(60)


@pytest.mark.parametrize("used", [False, True])
def test_a_volume_of_somebody_else_is_neither_used_nor_removed(
    volume: Volume, tag: str, used: bool
) -> None:
    docker("volume", "create", on_daemon(volume))
    container = f"sandboxkit-test-{tag}"
    image = os.environ.get("SANDBOXKIT_DOCKER_IMAGE", "sandboxkit/python:3.11")
    if used:
        mount = f"{on_daemon(volume)}:/data"
        docker("create", "--name", container, "--volume", mount, image, "true")
    try:
        with (
            Session(DockerProvider(), mounts={"/cache": volume}) as session,
            pytest.raises(ConfigurationError, match=f"{on_daemon(volume)}.*did not make"),
        ):
            session.run(["true"]).result(60)
        assert volume.name not in Operation(DockerProvider().list_volumes()).result(60)
        with pytest.raises(VolumeError, match=f"no volume '{volume.name}'"):
            remove(volume)
        assert docker("volume", "inspect", on_daemon(volume))
    finally:
        if used:
            docker("rm", container)


def test_a_volume_that_was_removed_is_made_again(volume: Volume) -> None:
    with Session(DockerProvider(), mounts={"/cache": volume}) as session:
        for profile in ("standard", "strict"):
            result = session.run(["touch", "/cache/file"], profile=profile).result(60)
            assert result.returncode == 0, result.stderr
            until(lambda: not docker(*containers(volume)), "the sandbox is gone")
            docker("volume", "rm", on_daemon(volume))
        assert session.run(["ls", "/cache"]).result(60).stdout == ""
    remove(volume)


def test_what_a_killed_client_left_does_not_keep_a_volume(volume: Volume, tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", KILLED, volume.name], timeout=60, check=False)
    assert done.returncode == -signal.SIGKILL
    assert docker(*containers(volume))
    with Session(DockerProvider(), mounts={"/cache": volume}, profile="strict") as session:
        assert session.run(["touch", "/cache/file"]).result(60).returncode == 0
    remove(volume)
    assert docker(*containers(volume)) == []

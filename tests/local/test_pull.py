"""Images of a registry on local, which skopeo pulls without a Docker daemon."""

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import anyio
import pytest

from sandboxkit import Session
from sandboxkit.errors import (
    ConfigurationError,
    ImageNotFoundError,
    ProviderUnavailableError,
    SandboxError,
)
from sandboxkit.providers.local import LocalProvider
from tests.components import require_program
from tests.kubernetes.registry import Registry
from tests.local.conftest import make
from tests.local.test_image import layer, oci_archive

__all__ = ["layer"]

pytestmark = pytest.mark.anyio


class HostRegistry(Registry):
    """A registry from which no node of a cluster pulls."""

    def _forget_pulled(self) -> None: ...


@pytest.fixture
def registry(tmp_path: Path, layer: bytes, monkeypatch: pytest.MonkeyPatch) -> Iterator[Registry]:
    require_program("skopeo", "KUBERNETES")
    folder = tmp_path / "registry"
    folder.mkdir()
    monkeypatch.setenv("SANDBOXKIT_CACHE_DIR", str(tmp_path / "cache"))
    with HostRegistry(folder) as registry:
        monkeypatch.setenv("REGISTRY_AUTH_FILE", str(folder / "docker/config.json"))
        image = oci_archive(tmp_path / "image.tar", [layer])
        push = ["skopeo", "--insecure-policy", "copy", "--quiet", "--dest-tls-verify=false"]
        target = f"docker://{registry.repository}:tool"
        subprocess.run([*push, f"oci-archive:{image}", target], check=True)
        yield registry


def cached(tmp_path: Path) -> list[str]:
    return sorted(os.listdir(tmp_path / "cache" / "images"))


async def test_an_image_of_a_registry_is_pulled_once_and_then_used_without_the_registry(
    registry: Registry, provider: LocalProvider, tmp_path: Path
) -> None:
    image = f"docker://{registry.repository}:tool"
    async with anyio.create_task_group() as group:
        for _ in range(3):
            group.start_soon(lambda: make(provider, image=image))
    assert registry.layer_pulls() == 1
    registry.stop()
    box = await make(provider, image=image)
    run = await box.sh("echo $FROM_IMAGE; cat /etc/kept; id -u")
    assert run.stdout == "yes\nkept\n1000\n", run.stderr
    assert (await provider.get(box.id)).image == image
    assert len(cached(tmp_path)) == 1


def test_what_cannot_be_pulled_says_why_and_leaves_nothing(
    registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def error(image: str) -> SandboxError:
        with Session("local", image=image) as session, pytest.raises(SandboxError) as caught:
            session.run(["true"]).result(60)
        return caught.value

    unknown = error(f"docker://{registry.repository}:other")
    assert type(unknown) is ImageNotFoundError
    assert "manifest unknown" in str(unknown)
    assert "level=" not in str(unknown)
    registry.log_in("tester:wrong")
    refused = error(f"docker://{registry.repository}:tool")
    assert type(refused) is ImageNotFoundError
    assert "docker login" in str(refused)
    assert "is not the name of an image" in str(error("docker://--help"))
    registry.log_in("tester:sesame")
    registry.stop()
    silent = error(f"docker://{registry.repository}:tool")
    assert type(silent) is ProviderUnavailableError
    monkeypatch.setenv("PATH", "/nothing")
    assert type(error("docker://python:3.11")) is ConfigurationError
    assert cached(tmp_path) == []


@contextmanager
def frozen(registry: Registry) -> Iterator[None]:
    assert registry._process is not None
    registry._process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        registry._process.send_signal(signal.SIGCONT)


def test_a_pull_ends_with_the_time_limit_of_its_start(registry: Registry, tmp_path: Path) -> None:
    image = f"docker://{registry.repository}:tool"
    with frozen(registry), Session("local", image=image, start_timeout=2) as session:
        with pytest.raises(SandboxError, match="start_timeout=2 s"):
            session.run(["true"]).result(60)
        commands = []
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            with suppress(OSError):  # it has just ended
                commands.append(path.read_bytes())
        assert not any(registry.repository.encode() in each for each in commands)
        assert cached(tmp_path) == []

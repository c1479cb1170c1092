"""What Docker cannot honour is refused; capabilities, where the daemon is looked for, and images."""

import hashlib
import json
import logging
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from sandboxkit.errors import ConfigurationError, ImageNotFoundError, SandboxError
from sandboxkit.providers.docker import DockerProvider, PullProgress
from sandboxkit.providers.docker._container import device_requests
from sandboxkit.providers.docker._endpoint import DEFAULT_URL, Endpoint
from sandboxkit.types import SandboxSpec
from tests.docker.boxes import Containers
from tests.docker.conftest import docker
from tests.kubernetes.registry import Registry
from tests.local.test_image import docker_save, tar_of

FOR_PACKAGES = ("CHOWN", "DAC_OVERRIDE", "FOWNER", "SETGID", "SETUID")
OWN = "print(open('/proc/self/status').read().split('CapEff:\\t')[1].split()[0])"
CHANGE = "import os; open('/tmp/f', 'w'); os.chown('/tmp/f', 65534, 65534); print('changed')"
TRACE = "import ctypes; print(ctypes.CDLL(None).ptrace(16, 1, 0, 0))"
STRICT = {"profile": "strict"}


@pytest.mark.parametrize(
    ("field", "options"),
    [
        ("disk_mb", {"disk_mb": 100}),
        ("disk_mb", {"disk_mb": 1, **STRICT}),
        ("memory_mb", {"memory_mb": 8}),
        ("pids", {"pids": 4}),
        ("cpus", {"cpus": 0.001}),
        ("user", {"user": "root", **STRICT}),
        ("user", {"user": "0", **STRICT}),
        ("user", {"user": "0:0", **STRICT}),
        ("workdir", {"workdir": "/", **STRICT}),
        ("tags", {"tags": {"sandboxkit": "1"}}),
        ("gpu", {"gpu": "many"}),
        ("gpu", {"gpu": "0"}),
    ],
)
def test_a_spec_that_docker_cannot_honour_is_refused_by_field(
    field: str,
    options: dict[str, Any],  # one type per field
) -> None:
    # A daemon that does not exist shows that none is asked.
    provider = DockerProvider(base_url="unix:///nonexistent.sock")
    with pytest.raises(ConfigurationError, match=f"cannot honour {field}="):
        provider.check(SandboxSpec(**options))


@pytest.mark.parametrize(
    ("gpu", "count", "devices"),
    [("all", -1, None), ("2", 2, None), ("device=0,1", 0, ["0", "1"])],
)
def test_gpus_become_a_device_request(gpu: str, count: int, devices: list[str] | None) -> None:
    (request,) = device_requests(gpu)
    assert request["Count"] == count
    assert request.get("DeviceIDs") == devices
    assert request["Capabilities"] == [["gpu"]]


@pytest.mark.anyio
async def test_only_root_has_the_added_capabilities_and_no_others(boxes: Containers) -> None:
    provider = boxes.provider(capabilities=["cap_chown", *FOR_PACKAGES])
    for user, expected in (("root", 1 << 0 | 1 << 1 | 1 << 3 | 1 << 6 | 1 << 7), ("nobody", 0)):
        box = await boxes.start(provider, user=user)
        assert int(await box.python(OWN), 16) == expected
        if user == "root":
            assert await box.python(CHANGE) == "changed"
            assert await box.python(TRACE) == "-1", "the agent has one that they have not"


@pytest.mark.parametrize("name", ["SYS_ADMIN", "KILL", "SYS_PTRACE", "chown "])
def test_capabilities_that_break_isolation_are_refused(name: str) -> None:
    with pytest.raises(ConfigurationError, match="cannot be added; use one of CHOWN"):
        DockerProvider(capabilities=[name])


@pytest.mark.parametrize(
    ("argument", "environment", "current", "expected"),
    [
        (None, {}, "", DEFAULT_URL),
        (None, {"DOCKER_HOST": "tcp://127.0.0.1:2999"}, "", "tcp://127.0.0.1:2999"),
        ("unix:///tmp/x", {"DOCKER_HOST": "tcp://127.0.0.1:2999"}, "", "unix:///tmp/x"),
        (None, {}, "far", "unix:///tmp/far.sock"),
        (None, {"DOCKER_CONTEXT": "far"}, "", "unix:///tmp/far.sock"),
        (None, {"DOCKER_CONTEXT": "far", "DOCKER_HOST": "unix:///tmp/x"}, "", "unix:///tmp/x"),
        (None, {"DOCKER_CONTEXT": "nowhere"}, "", None),
    ],
    ids=["default", "DOCKER_HOST", "argument", "current", "DOCKER_CONTEXT", "both", "unknown"],
)
def test_the_daemon_is_looked_for_where_docker_looks(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    argument: str | None,
    environment: dict[str, str],
    current: str,
    expected: str | None,
) -> None:
    for name in ("DOCKER_HOST", "DOCKER_CONTEXT", "DOCKER_TLS_VERIFY", "DOCKER_CERT_PATH"):
        monkeypatch.delenv(name, raising=False)
    for name, value in {"DOCKER_CONFIG": str(tmp_path), **environment}.items():
        monkeypatch.setenv(name, value)
    (tmp_path / "config.json").write_text(
        json.dumps({"currentContext": current} if current else {})
    )
    folder = tmp_path / "contexts" / "meta" / hashlib.sha256(b"far").hexdigest()
    folder.mkdir(parents=True)
    endpoints = {"docker": {"Host": "unix:///tmp/far.sock"}}
    meta = {"Name": "far", "Metadata": {}, "Endpoints": endpoints}
    (folder / "meta.json").write_text(json.dumps(meta))
    if expected is None:
        with pytest.raises(ConfigurationError, match=r"nowhere.*docker context ls"):
            Endpoint.resolve(argument)
        return
    found = Endpoint.resolve(argument)
    assert found.url == expected
    path = expected.removeprefix("unix://") if expected.startswith("unix://") else None
    assert found.socket_path == path
    if path is None:
        assert (found.host, found.port) == ("127.0.0.1", 2999)


@pytest.mark.parametrize(
    ("url", "remedy"),
    [
        ("ssh://me@there", "ssh -nNT -L"),
        ("npipe:////./pipe/docker_engine", "use unix://"),
        ("tcp://:2375", "use unix://"),
        ("tcp://host:notaport", "use unix://"),
        ("/var/run/docker.sock", "use unix://"),
        ("unix://", "use unix://"),
    ],
)
def test_a_url_that_cannot_be_used_is_refused_with_a_remedy(url: str, remedy: str) -> None:
    with pytest.raises(ConfigurationError, match=remedy):
        Endpoint.parse(url)


@pytest.fixture
def registry(daemon: None, tmp_path: Path) -> Iterator[tuple[Registry, str]]:
    """A public registry, and the name of its only image."""
    with Registry(tmp_path, public=True) as registry:
        hello = docker_save(tmp_path / "image.tar", [tar_of({"hello.txt": b"hello"})], user="1234")
        image = registry.push(hello, "hello:1")
        yield registry, image
        subprocess.run(["docker", "rmi", "--force", image], capture_output=True)


@pytest.mark.anyio
async def test_a_missing_image_is_pulled_once_with_progress_and_again_after_it_was_removed(
    boxes: Containers, registry: tuple[Registry, str], caplog: pytest.LogCaptureFixture
) -> None:
    image = registry[1]
    seen: list[PullProgress] = []
    provider = boxes.provider(on_pull=seen.append)
    with caplog.at_level(logging.INFO, logger="sandboxkit.docker"):
        async with anyio.create_task_group() as tasks:
            for _ in range(2):
                tasks.start_soon(provider._images.ensure, image)
        assert caplog.text.count("pulling image") == 1
        assert caplog.text.count(f"pulled image {image}") == 1
        assert (await provider._images.ensure(image)).user == "1234"
        docker("rmi", "--force", image)
        await provider.delete((await boxes.start(provider, image=image)).id)
        assert caplog.text.count(f"pulled image {image}") == 2
    assert {progress.image for progress in seen} == {image}
    assert any("Pull complete" in progress.status for progress in seen)


@pytest.mark.anyio
async def test_an_image_that_cannot_be_had_is_an_error_with_remedies(
    registry: tuple[Registry, str],
) -> None:
    absent = f"{registry[0].host}/absent:9"
    cases: list[tuple[str, type[SandboxError], tuple[str, ...]]] = [
        (absent, ImageNotFoundError, (absent, "docker build", "SANDBOXKIT_DOCKER_IMAGE")),
        ("127.0.0.1:1/absent:9", ImageNotFoundError, ("refused",)),
    ]
    names = ("Not A Name", "UPPER/case", "x:y:z", "/no/such/image")
    cases += [(name, ConfigurationError, (name,)) for name in names]
    for image, error, words in cases:
        with pytest.raises(error) as caught:
            await DockerProvider().create(SandboxSpec(image=image))
        assert type(caught.value) is error
        assert all(each in str(caught.value) for each in words)

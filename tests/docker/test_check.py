"""What Docker cannot honour is refused; capabilities, where the daemon is looked for, and images."""

import hashlib
import json
import logging
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest

from sandboxkit import Operation
from sandboxkit.cli import _providers
from sandboxkit.errors import ConfigurationError, ImageNotFoundError, SandboxError
from sandboxkit.providers.docker import DockerProvider, PullProgress
from sandboxkit.providers.docker._container import device_requests
from sandboxkit.providers.docker._endpoint import Endpoint
from sandboxkit.types import SandboxSpec
from tests.docker.boxes import Containers
from tests.docker.conftest import docker
from tests.docker_here import require_docker
from tests.kubernetes.registry import Registry
from tests.local.test_image import docker_save, tar_of

FOR_PACKAGES = ("CHOWN", "DAC_OVERRIDE", "FOWNER", "SETGID", "SETUID")
OWN = "print(open('/proc/self/status').read().split('CapEff:\\t')[1].split()[0])"
CHANGE = "import os; open('/tmp/f', 'w'); os.chown('/tmp/f', 65534, 65534); print('changed')"
TRACE = "import ctypes; print(ctypes.CDLL(None).ptrace(16, 1, 0, 0))"
# Any: options of every type.
CASES: dict[str, Any] = tomllib.loads(Path(__file__).with_name("check.toml").read_text())


@pytest.mark.parametrize("case", CASES["refused"], ids=lambda case: str(case["options"]))
def test_a_spec_that_docker_cannot_honour_is_refused_by_field(case: dict[str, Any]) -> None:
    # A daemon that does not exist shows that none is asked.
    provider = DockerProvider(base_url="unix:///nonexistent.sock")
    with pytest.raises(ConfigurationError, match=f"cannot honour {case['named']}="):
        provider.check(SandboxSpec(**case["options"]))


@pytest.mark.parametrize(
    ("gpu", "count", "devices"), [("all", -1, None), ("2", 2, None), ("device=0,1", 0, ["0", "1"])]
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


@pytest.mark.parametrize("name", CASES["daemons"])
def test_the_daemon_is_looked_for_where_docker_looks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    case = CASES["daemons"][name]
    for variable in ("DOCKER_HOST", "DOCKER_CONTEXT", "DOCKER_TLS_VERIFY", "DOCKER_CERT_PATH"):
        monkeypatch.delenv(variable, raising=False)
    for variable, value in {"DOCKER_CONFIG": str(tmp_path), **case.get("environment", {})}.items():
        monkeypatch.setenv(variable, value)
    current = {"currentContext": case["current"]} if "current" in case else {}
    (tmp_path / "config.json").write_text(json.dumps(current))
    folder = tmp_path / "contexts" / "meta" / hashlib.sha256(b"far").hexdigest()
    folder.mkdir(parents=True)
    endpoints = {"docker": {"Host": "unix:///tmp/far.sock"}}
    meta = {"Name": "far", "Metadata": {}, "Endpoints": endpoints}
    (folder / "meta.json").write_text(json.dumps(meta))
    argument, url = case.get("argument"), case.get("url")
    if url is None:
        with pytest.raises(ConfigurationError, match=r"nowhere.*docker context ls"):
            Endpoint.resolve(argument)
        return
    found = Endpoint.resolve(argument)
    assert found.url == url
    if url.startswith("unix://"):
        assert found.socket_path == url.removeprefix("unix://")
    else:
        assert (found.socket_path, found.host, found.port) == (None, "127.0.0.1", 2999)


@pytest.mark.parametrize(("url", "remedy"), CASES["addresses"].items())
def test_a_url_that_cannot_be_used_is_refused_with_a_remedy(url: str, remedy: str) -> None:
    with pytest.raises(ConfigurationError, match=remedy):
        Endpoint.parse(url)


def test_tls_settings_make_a_verifying_context() -> None:
    context = Endpoint.parse("https://docker.example:2376").ssl_context()
    assert context is not None
    assert context.check_hostname


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
        await (await boxes.start(provider, image=image)).inner.delete()
        assert caplog.text.count(f"pulled image {image}") == 2
    assert {progress.image for progress in seen} == {image}
    assert any("Pull complete" in progress.status for progress in seen)


def test_doctor_says_why_no_sandbox_starts(monkeypatch: pytest.MonkeyPatch) -> None:
    require_docker()
    monkeypatch.setenv("SANDBOXKIT_DOCKER_IMAGE", "127.0.0.1:1/absent:9")
    monkeypatch.setattr(_providers, "_START_SECONDS", 60)
    found = Operation(_providers.tried(["docker"])).result(60)["docker"]
    assert not found.available
    assert found.detail.endswith("; no sandbox starts")
    assert "refused" in found.remedy


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

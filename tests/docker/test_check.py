"""What Docker cannot honour is refused before any I/O."""

from typing import Any

import pytest

from sandboxkit.errors import ConfigurationError
from sandboxkit.providers.docker import DockerProvider
from sandboxkit.providers.docker._container import device_requests
from sandboxkit.types import SandboxSpec


@pytest.mark.parametrize(
    ("field", "options"),
    [
        ("disk_mb", {"disk_mb": 100}),
        ("disk_mb", {"disk_mb": 1, "profile": "strict"}),
        ("memory_mb", {"memory_mb": 8}),
        ("pids", {"pids": 4}),
        ("cpus", {"cpus": 0.001}),
        ("user", {"user": "root", "profile": "strict"}),
        ("user", {"user": "0", "profile": "strict"}),
        ("user", {"user": "0:0", "profile": "strict"}),
        ("workdir", {"workdir": "/", "profile": "strict"}),
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

"""Podman's service is known by its answers, and gets what it understands (its answers here are of version 4.3.1)."""

import json
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from sandboxkit.errors import ConfigurationError
from sandboxkit.providers import _rules
from sandboxkit.providers.docker import _container, _daemon
from sandboxkit.providers.docker._gvisor import Runtimes
from sandboxkit.types import SandboxSpec

IMAGE = _container.ContainerImage("an image", "sha256:0", user="", volumes=())
# Any: of every type.
ANSWER: dict[str, Any] = {
    "Architecture": "amd64",
    "BuildahVersion": "1.28.2",
    "CgroupVersion": "1",
    "Rootless": False,
    "Runtimes": {"crun": {"path": "/usr/bin/crun"}, "runsc": {"path": "/usr/bin/runsc"}},
}


def body(**options: Any) -> dict[str, Any]:
    """Return the options with which Docker creates a container for these."""
    made = _container.create_body(
        SandboxSpec(**options),
        IMAGE,
        name="sandboxkit-0",
        own_user="9:9",
        agent_volume="agent",
        runtime=None,
        network="bridge",
        podman=True,
    )
    return {**made}


def test_the_list_of_system_calls_is_a_file() -> None:
    (option,) = (each for each in body()["HostConfig"]["SecurityOpt"] if "=" in each)
    profile = json.loads(Path(option.removeprefix("seccomp=")).read_text())
    assert profile["defaultAction"] == "SCMP_ACT_ERRNO"


def test_a_strict_sandbox_has_no_other_folders_in_memory() -> None:
    folders = body(profile="strict")["HostConfig"]["Tmpfs"]
    writable = {folder for folder, options in folders.items() if options.startswith("rw,")}
    assert writable == {"/tmp", "/workspace"}
    assert set(folders) - writable == {"/run", "/var/tmp"}
    assert not any("nr_inodes" in options for options in folders.values())


def test_the_engine_makes_roots_workdir_and_no_others() -> None:
    made = [body(**options)["WorkingDir"] for options in ({}, {"workdir": "/a"}, {"user": "1234"})]
    assert made == ["/workspace", "/a", "/"]


def test_limits_are_refused_where_it_has_none() -> None:
    assert _daemon._info(ANSWER).limits
    podmans_word: dict[str, object] = {"Rootless": True}
    dockers_word: dict[str, object] = {
        "Rootless": False,
        "SecurityOptions": ["name=seccomp", "name=rootless"],
    }
    for driver, rootless in product(("cgroupfs", "none", "systemd"), (podmans_word, dockers_word)):
        own = {"CgroupVersion": "2", "CgroupDriver": driver}
        assert _daemon._info(ANSWER | own | rootless).limits is (driver == "systemd")
    info = _daemon._info(ANSWER | {"Rootless": True})
    assert (info.podman, info.limits, Runtimes().gvisor(info)) == (True, False, None)
    assert int(_container.own_user(info.security).partition(":")[0]) < 65536
    with pytest.raises(ConfigurationError, match=f"pids=64.*{_container.LIMITS_REMEDY}"):
        _rules.check(SandboxSpec(pids=64), _container.WITHOUT_LIMITS, provider="docker")

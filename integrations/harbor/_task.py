"""Loads a Harbor task folder as a task of `integrations.swe`, with its tests hidden from the policy."""

import os
import posixpath
import re
from collections.abc import Collection
from pathlib import Path
from typing import Any

from sandboxkit import ConfigurationError, Egress
from sandboxkit.integrations.harbor._definition import image_and_workdir, loose_files
from sandboxkit.integrations.harbor._network import NONE, PUBLIC, changeable, network_of
from sandboxkit.integrations.swe import Task
from sandboxkit.integrations.swe.folder import (
    allowed,
    public_network,
    read_settings,
    read_table,
    task_folder,
    tests_folder,
)
from sandboxkit.types import Network

_WORKDIR = "/workspace"
_SECONDS = 600.0
_RESERVED = ("tests", "logs", "solution")
_MB = {"K": 1 / 1024, "M": 1, "G": 1024}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)([KMG])")
_VARIABLE = re.compile(r"\$\{([^}:]+)(?::-(.*))?\}")
_REFUSED = {
    "": ("steps",),
    "environment": ("gpus", "gpu_types", "tpu", "mcp_servers", "healthcheck"),
    "agent": ("user",),
    "verifier": ("user", "environment", "collect"),
}
"""Settings that `integrations.swe` does not support; ignoring them would change the task."""


def load_task(
    folder: Path,
    *,
    image: str | None = None,
    in_place: bool = False,
    allow_network: str | Collection[str] = (),
    env_names: Collection[str] = (),
) -> Task:
    """Read a Harbor task. Raises ConfigurationError, which names what is missing or unsupported.

    The agent works in the image of task.toml's `docker_image`, or of its Dockerfile, which is built if
    it adds more than a WORKDIR, with a network if `allow_network` is "internet". `image` overrides it; "default" is the provider's default. Afterwards the working directory
    is copied to a pristine sandbox, where `tests/test.sh` runs; in the verifier mode "separate" the
    task's artifacts are copied instead. With `in_place` the tests run in the agent's sandbox, as in
    Harbor's mode "shared"; the network then changes to the verifier's before they start.

    As in Harbor, the reward is in reward.json (its "reward", or its only number), else in reward.txt,
    and the exit status of test.sh does not matter. Without a reward in [0, 1] the infrastructure failed.
    But if the tests write a reward without the submission, the submission is to blame (with a network,
    only if its reward is missing twice).

    Somebody else may have made the folder. Images are those of registries, and no link may lead out of it.
    `allow_network` has the servers that the task may name, or "internet" for all; a task that names no network
    has the session's, or with "internet" Harbor's public one. `env_names` has the variables of this process
    that the task's `env` may read as `${NAME}`.
    """
    files = task_folder(folder)
    tests, instruction = tests_folder(files), files.text("instruction.md")
    for needed, found in (
        ("task.toml", files.find("task.toml")),
        ("instruction.md", instruction),
        ("tests/test.sh", None if tests is None else tests.text("test.sh")),
    ):
        if found is None:
            raise ConfigurationError(f"task {folder.name!r}: there is no {folder / needed}")
    assert tests is not None
    settings = read_settings(files)
    environment, agent, verifier = (
        read_table(settings, name, folder) for name in ("environment", "agent", "verifier")
    )
    _refuse(folder, settings, {"environment": environment, "agent": agent, "verifier": verifier})
    named = environment.get("docker_image")
    chosen, given = image_and_workdir(files, "environment", named, image)
    workdir = environment.get("workdir") or given or _WORKDIR
    seeds = loose_files(files, named)
    try:
        base = _network(folder, environment, allow_network)
        network = _network(folder, agent, allow_network, base)
        test_network = _network(folder, verifier, allow_network, base)
        if in_place and network and test_network and network != test_network:
            network, test_network = changeable(network), changeable(test_network)
        return Task(
            id=folder.name,
            instruction=instruction or "",
            tests=tests.path,
            image=chosen,
            build_network=public_network(allow_network),
            seeds=seeds,
            workdir=workdir,
            artefacts=_artefacts(settings, verifier, workdir),
            in_place=in_place,
            test_timeout=float(verifier.get("timeout_sec", _SECONDS)),
            memory_mb=_memory_mb(environment),
            cpus=environment.get("cpus"),
            env=variables(folder.name, environment.get("env", {}), env_names),
            network=network,
            test_env=variables(folder.name, verifier.get("env", {}), env_names),
            test_network=test_network,
            reward_decides=True,
        )
    except ConfigurationError:
        raise
    except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
        raise ConfigurationError(f"{folder / 'task.toml'}: {error}") from error


# Any: TOML values, here and below.
def _refuse(folder: Path, settings: dict[str, Any], tables: dict[str, dict[str, Any]]) -> None:
    for name, keys in _REFUSED.items():
        table = tables.get(name, settings)
        for key in keys:
            if table.get(key) not in (None, 0, []):
                raise ConfigurationError(
                    f"{folder / 'task.toml'}: {key} of [{name or 'the task'}] is not supported here; "
                    "run the task in Harbor, with SandboxkitEnvironment"
                )
    system = tables["environment"].get("os", "linux")
    if system != "linux":
        raise ConfigurationError(f"{folder / 'task.toml'}: os={system!r} is not linux")


def _network(
    folder: Path,
    table: dict[str, Any],
    allow_network: str | Collection[str],
    base: Network | Egress | None = None,
) -> Network | Egress | None:
    """Return the network that a table of task.toml defines, or that of [environment], `base`; None for none."""
    mode, hosts = table.get("network_mode"), table.get("allowed_hosts")
    if mode is None and hosts is None and "allow_internet" in table:
        mode = PUBLIC if table["allow_internet"] else NONE
    if mode is None and hosts is None:
        return base or ("internet" if public_network(allow_network) == "internet" else None)
    try:
        network = network_of(mode, hosts)
        allowed(folder.name, network, allow_network)
    except ConfigurationError as error:
        raise ConfigurationError(f"{folder / 'task.toml'}: {error}") from error
    return network


def _artefacts(settings: dict[str, Any], verifier: dict[str, Any], workdir: str) -> tuple[str, ...]:
    """Return the paths to grade. Raises ValueError for one that collides with the tests or logs."""
    if verifier.get("environment_mode", "shared") != "separate":
        return (_unreserved(workdir),)
    declared = settings.get("artifacts", [])
    if not declared or not isinstance(declared, list):
        raise ValueError("environment_mode='separate' without artifacts leaves nothing to test")
    given = [each if isinstance(each, str) else each["source"] for each in declared]
    paths = [posixpath.normpath(posixpath.join(workdir, each)) for each in given]
    return tuple(map(_unreserved, paths))


def _unreserved(path: str) -> str:
    if posixpath.normpath(path).lstrip("/").split("/")[0] in _RESERVED:
        raise ValueError(f"{path!r} collides with a folder of the tests or their logs")
    return path


def _memory_mb(environment: dict[str, Any]) -> int | None:
    """Return `memory_mb`, or Harbor's older `memory` in MiB. Raises ValueError for an invalid size."""
    written = environment.get("memory")
    if written is None or environment.get("memory_mb") is not None:
        return environment.get("memory_mb")
    size = _SIZE.fullmatch(str(written).strip().upper())
    if size is None:
        raise ValueError(f"memory={written!r} is not a size such as 512M or 2G")
    return int(float(size[1]) * _MB[size[2]])


def variables(task: str, table: dict[str, Any], env_names: Collection[str]) -> dict[str, str]:
    """Expand values `${NAME}` and `${NAME:-default}` of the names in `env_names` from this process's environment.

    Raises ConfigurationError for another name, and for a variable that is not set and has no default.
    """
    found = dict[str, str]()
    for name, value in table.items():
        template = _VARIABLE.fullmatch(value)
        if template is None:
            found[name] = value
            continue
        if isinstance(env_names, str) or template[1] not in env_names:
            raise ConfigurationError(
                f"task {task!r}: {name}={value!r} reads the variable {template[1]!r} of this process: if the task may have it, "
                f"load it with env_names=[{template[1]!r}]"
            )
        given = os.environ.get(template[1], template[2])
        if given is None:
            raise ConfigurationError(
                f"task {task!r}: {name}={value!r}: the environment variable {template[1]} is not set"
            )
        found[name] = given
    return found

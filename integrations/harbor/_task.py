"""Loads a Harbor task folder as a task of `integrations.swe`, with its tests hidden from the policy."""

import os
import posixpath
import re
from pathlib import Path
from typing import Any

from sandboxkit import ConfigurationError, Egress
from sandboxkit.integrations.harbor._definition import image_and_workdir, loose_files
from sandboxkit.integrations.harbor._network import NONE, PUBLIC, changeable, network_of
from sandboxkit.integrations.swe import Task
from sandboxkit.integrations.swe.folder import read_settings, read_table
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


def load_task(folder: Path, *, image: str | None = None, in_place: bool = False) -> Task:
    """Read a Harbor task. Raises ConfigurationError, which names what is missing or unsupported.

    The agent works in the image of task.toml's `docker_image`, or of a Dockerfile that adds at most a
    WORKDIR. `image` overrides it; "default" is the provider's default. Afterwards the working directory
    is copied to a pristine sandbox, where `tests/test.sh` runs; in the verifier mode "separate" the
    task's artifacts are copied instead. With `in_place` the tests run in the agent's sandbox, as in
    Harbor's mode "shared"; the network then changes to the verifier's before they start.

    As in Harbor, the reward is in reward.json (its "reward", or its only number), else in reward.txt,
    and the exit status of test.sh does not matter. Without a reward in [0, 1] the infrastructure failed.
    But if the tests write a reward without the submission, the submission is to blame (with a network,
    only if its reward is missing twice).
    """
    settings = read_settings(folder / "task.toml")
    instruction, tests = folder / "instruction.md", folder / "tests"
    for needed in (folder / "task.toml", instruction, tests / "test.sh"):
        if not needed.is_file():
            raise ConfigurationError(f"task {folder.name!r}: there is no {needed}")
    environment, agent, verifier = (
        read_table(settings, name, folder) for name in ("environment", "agent", "verifier")
    )
    _refuse(folder, settings, {"environment": environment, "agent": agent, "verifier": verifier})
    named = environment.get("docker_image")
    chosen, found = image_and_workdir(folder / "environment", named, image)
    workdir = environment.get("workdir") or found or _WORKDIR
    try:
        base = _network(folder, environment, None)
        network: Network | Egress = _network(folder, agent, base)
        test_network: Network | Egress = _network(folder, verifier, base)
        if in_place and network != test_network:
            network, test_network = changeable(network), changeable(test_network)
        return Task(
            id=folder.name,
            instruction=instruction.read_text("utf-8"),
            tests=tests,
            image=chosen,
            seeds=loose_files(folder / "environment", named),
            workdir=workdir,
            artefacts=_artefacts(settings, verifier, workdir),
            in_place=in_place,
            test_timeout=float(verifier.get("timeout_sec", _SECONDS)),
            memory_mb=_memory_mb(environment),
            cpus=environment.get("cpus"),
            env=_variables(environment.get("env", {})),
            network=network,
            test_env=_variables(verifier.get("env", {})),
            test_network=test_network,
            reward_decides=True,
        )
    except ConfigurationError:
        raise
    except (AttributeError, KeyError, TypeError, ValueError) as error:
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
    folder: Path, table: dict[str, Any], base: Network | Egress | None
) -> Network | Egress:
    """Return the network that a table of task.toml defines.

    `base` is the environment's network, which the other tables inherit; None for [environment] itself.
    """
    mode, hosts = table.get("network_mode"), table.get("allowed_hosts")
    if mode is None and base is not None and hosts is None:
        return base
    if mode is None and base is None:
        mode = PUBLIC if table.get("allow_internet", True) else NONE
    try:
        return network_of(mode, hosts)
    except ConfigurationError as error:
        raise ConfigurationError(f"{folder / 'task.toml'}: {error}") from error


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


def _variables(table: dict[str, Any]) -> dict[str, str]:
    """Expand values `${NAME}` and `${NAME:-default}` from this process's environment.

    Raises ValueError for a variable that is not set and has no default.
    """
    found = dict[str, str]()
    for name, value in table.items():
        template = _VARIABLE.fullmatch(value)
        if template is None:
            found[name] = value
            continue
        given = os.environ.get(template[1], template[2])
        if given is None:
            raise ValueError(f"{name}={value!r}: the environment variable {template[1]} is not set")
        found[name] = given
    return found

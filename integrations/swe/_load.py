"""Loads a task from its folder, in Harbor's format, Terminal-Bench's older one or sandboxkit's own."""

import os
import posixpath
import re
from collections.abc import Collection
from pathlib import Path
from typing import Any

from sandboxkit import ConfigurationError, Egress, MissingExtraError
from sandboxkit.datasets import Folder
from sandboxkit.integrations.swe import _terminal_bench
from sandboxkit.integrations.swe._task import Healthcheck, Task
from sandboxkit.integrations.swe.folder import (
    COMPOSE,
    INTERNET,
    NONE,
    PUBLIC,
    allowed,
    changeable,
    image_and_workdir,
    network_of,
    public_network,
    read_settings,
    read_table,
    task_folder,
    tests_folder,
    variables,
)
from sandboxkit.types import Network

_OWN = ("image.txt", "setup.sh", "tests/judge.py")
"""Files by which a folder with a task.toml is sandboxkit's own, as it is by a table [sandboxkit]."""
_RESERVED = re.compile("/*(?:tests|logs|solution)(?:/|$)")
_MB = {"K": 1 / 1024, "M": 1, "G": 1024}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)([KMG])")
_REFUSED = {
    "": ("steps", "multi_step_reward_strategy"),
    "environment": ("gpus", "gpu_types", "tpu", "mcp_servers", "skills_dir"),
    "verifier": ("environment", "collect"),
}
"""Harbor's settings that are not supported here; ignoring them would change the task."""
_ABOUT = ("schema_version", "version", "task", "metadata", "source")
"""Harbor's settings for readers of a task."""


def load_task(
    folder: Path,
    *,
    image: str | None = None,
    in_place: bool | None = None,
    allow_network: str | Collection[str] = (),
    env_names: Collection[str] = (),
) -> Task:
    """Read a task from its folder, whose files tell the format. Raises ConfigurationError for what is
    missing, invalid or not supported, by its name.

    - `task.yaml`: Terminal-Bench's older format. The results that the tests print are the reward.
    - `task.toml`: Harbor's, versions 1.0 and later. The reward is in /logs/verifier/reward.json (its "reward", or its
      only number), else in reward.txt, and the exit status of `tests/test.sh` does not matter. Without a reward in
      [0, 1] the sample is masked, unless the tests do write one where nothing was submitted.
    - a table `[sandboxkit]` in task.toml, one of `tests/judge.py`, `setup.sh` and `image.txt`, or no task.toml: our
      own, with Harbor's keys. `[sandboxkit]` may have `in_place`, `artefacts`, `setup_timeout` and `setup_allow`, the
      servers that setup.sh may reach. The exit status of test.sh decides, or the score in reward.txt.

    A Dockerfile that adds more than a WORKDIR is built before the first sandbox, with a network if `allow_network` is
    "internet". `image` overrides the task's; "default" is the provider's. The working directory and the task's
    artifacts (in Harbor's mode "separate" these alone) are copied to a pristine sandbox for the tests. With `in_place`
    the tests run in the agent's sandbox, as in Harbor's mode "shared"; its network becomes the verifier's.

    Somebody else may have made the folder: images are those of registries, and no link may lead out of it.
    `allow_network` has the servers that the task may name, or "internet" for all; a task that names no network
    has the session's, or with "internet" Harbor's public one. `env_names` has the variables of this process
    that the task's `env` may read as `${NAME}`.
    """
    files = task_folder(folder)
    read, settings = _from_toml, "task.toml"
    if files.find("task.yaml") is not None:
        read, settings = _terminal_bench.read, "task.yaml"
    try:
        return read(files, image, in_place, allow_network, env_names)
    except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
        names = (f"task {folder.name!r}", str(files.path))
        if isinstance(error, MissingExtraError) or (
            isinstance(error, ConfigurationError) and any(name in str(error) for name in names)
        ):
            raise
        why = f"{error} is missing" if isinstance(error, KeyError) else error
        raise ConfigurationError(f"{folder / settings}: {why}") from error


def _from_toml(
    files: Folder,
    override: str | None,
    in_place: bool | None,
    allow_network: str | Collection[str],
    env_names: Collection[str],
) -> Task:
    folder, tests, instruction = files.path, tests_folder(files), files.text("instruction.md")
    if instruction is None:
        raise ConfigurationError(f"task {folder.name!r}: there is no {folder / 'instruction.md'}")
    judged = tests is not None and tests.text("judge.py") is not None
    if tests is None or (not judged and tests.text("test.sh") is None):
        judge, script = folder / "tests" / "judge.py", folder / "tests" / "test.sh"
        raise ConfigurationError(f"task {folder.name!r}: there is neither {judge} nor {script}")
    settings = read_settings(files)
    is_harbor = files.find("task.toml") is not None and "sandboxkit" not in settings
    is_harbor = is_harbor and not any(files.find(name) for name in _OWN)
    environment, agent, verifier, solution, own = (
        read_table(settings, name, folder)
        for name in ("environment", "agent", "verifier", "solution", "sandboxkit")
    )
    _refuse(folder, settings, {"environment": environment, "verifier": verifier})
    named = environment.get("docker_image")
    if not is_harbor:
        named = named or (files.text("image.txt") or "").strip() or None
    for compose in COMPOSE:
        if files.find(f"environment/{compose}") is not None:
            raise ValueError(f"environment/{compose}: sandboxes have no Docker Compose services")
    image, found = image_and_workdir(files, "environment", named, override, required=is_harbor)
    workdir = environment.get("workdir") or found or "/workspace"
    in_place = bool(own.get("in_place", False)) if in_place is None else in_place
    base = _network(folder, environment, allow_network)
    if base is None and is_harbor and public_network(allow_network) == INTERNET:
        base = INTERNET
    network = _network(folder, agent, allow_network, base)
    test_network = _network(folder, verifier, allow_network, base)
    if in_place and network and test_network and network != test_network:
        network, test_network = changeable(network), changeable(test_network)
    setup_network = Egress(allow=own["setup_allow"]) if "setup_allow" in own else None
    allowed(folder.name, setup_network, allow_network)
    health = environment.get("healthcheck")
    return Task(
        id=folder.name,
        instruction=instruction,
        tests=tests.path,
        judged=judged,
        image=image,
        build_network=public_network(allow_network),
        build_timeout=environment.get("build_timeout_sec"),
        setup=None if is_harbor else files.text("setup.sh"),
        seeds=_loose_files(files, named) if is_harbor else files.subfolder("environment/seeds"),
        workdir=workdir,
        artefacts=_artefacts(settings, verifier, own.get("artefacts"), workdir),
        in_place=in_place,
        setup_timeout=float(own.get("setup_timeout", 300.0)),
        setup_network=setup_network,
        agent_timeout=agent.get("timeout_sec"),
        test_timeout=float(verifier.get("timeout_sec", 600.0 if is_harbor else 300.0)),
        memory_mb=_mebibytes(environment, "memory"),
        disk_mb=_mebibytes(environment, "storage"),
        cpus=environment.get("cpus"),
        env=variables(folder.name, environment.get("env", {}), env_names),
        user=None if agent.get("user") is None else str(agent["user"]),
        test_user=None if verifier.get("user") is None else str(verifier["user"]),
        healthcheck=None if health is None else Healthcheck(**health),
        network=network,
        test_env=variables(folder.name, verifier.get("env", {}), env_names),
        test_network=test_network,
        reward_decides=is_harbor,
        solution=files.subfolder("solution") if files.find("solution/solve.sh") else None,
        solution_env=variables(folder.name, solution.get("env", {}), env_names),
        metadata={name: settings[name] for name in _ABOUT if name in settings},
    )


# Any: TOML values, here and below.
def _refuse(folder: Path, settings: dict[str, Any], tables: dict[str, dict[str, Any]]) -> None:
    version = str(settings.get("schema_version", settings.get("version", "1")))
    if version.partition(".")[0] != "1":
        raise ConfigurationError(f"{folder / 'task.toml'}: version {version!r} is not 1.0 to 1.x")
    for name, keys in _REFUSED.items():
        table = tables.get(name, settings)
        for key in keys:
            if table.get(key) not in (None, 0, [], ""):
                raise ConfigurationError(
                    f"{folder / 'task.toml'}: {key} of [{name or 'the task'}] is not supported here; "
                    "run the task in Harbor, with SandboxkitEnvironment"
                )
    system = tables["environment"].get("os", "linux")
    if str(system).lower() != "linux":
        raise ConfigurationError(f"{folder / 'task.toml'}: os={system!r} is not linux")


def _network(
    folder: Path,
    table: dict[str, Any],
    allow_network: str | Collection[str],
    base: Network | Egress | None = None,
) -> Network | Egress | None:
    """Return the network that a table of task.toml defines, or that of [environment], `base`; None for none."""
    mode, hosts = table.get("network_mode"), table.get("allowed_hosts")
    if mode is None and hosts is None and table.get("allow_internet") is not None:
        mode = PUBLIC if table["allow_internet"] else NONE
    if mode is None and hosts is None:
        return base
    network = network_of(mode, hosts)
    allowed(folder.name, network, allow_network)
    return network


def _artefacts(
    settings: dict[str, Any], verifier: dict[str, Any], own: Any, workdir: str
) -> tuple[str, ...]:
    """Return the paths to grade: sandboxkit's own `artefacts`, or the working directory and Harbor's artifacts.

    In the verifier mode "separate" these are the artifacts alone. Raises ValueError for a path that collides with
    the tests or their logs.
    """
    if own is not None:
        return tuple(map(_unreserved, own))
    declared = list[str]()
    for each in settings.get("artifacts", []):
        entry = {"source": each} if isinstance(each, str) else each
        if entry.get("exclude") or entry.get("service") not in (None, "main"):
            raise ValueError(
                f"artifacts: exclude and service of {entry['source']!r} are not supported here"
            )
        declared.append(posixpath.normpath(posixpath.join(workdir, entry["source"])))
    mode = verifier.get("environment_mode", "shared")
    if mode not in ("shared", "separate"):
        raise ValueError(f"environment_mode={mode!r} is neither 'shared' nor 'separate'")
    if mode == "separate":
        if not declared:
            raise ValueError("environment_mode='separate' without artifacts leaves nothing to test")
        return tuple(map(_unreserved, declared))
    inside = f"{workdir.rstrip('/')}/"
    more = [each for each in declared if not f"{each}/".startswith(inside)]
    return (_unreserved(workdir), *(each for each in more if not _RESERVED.match(each)))


def _unreserved(path: str) -> str:
    if "\0" in path or _RESERVED.match(posixpath.normpath(path)):
        raise ValueError(
            f"artefact {path!r} conflicts with the tests: it has a NUL character, or is in /tests, /logs or /solution"
        )
    return path


def _mebibytes(environment: dict[str, Any], name: str) -> int | None:
    """Return `memory_mb`, or Harbor's older `memory`, in MiB. Raises ValueError for an invalid size."""
    given, written = environment.get(f"{name}_mb"), environment.get(name)
    if written is None:
        return given
    size = _SIZE.fullmatch(str(written).strip().upper())
    if size is None:
        raise ValueError(f"{name}={written!r} is not a size such as 512M or 2G")
    found = int(float(size[1]) * _MB[size[2]])
    if given not in (None, found):
        raise ValueError(f"{name}={written!r} and {name}_mb={given!r} are different sizes")
    return found


def _loose_files(files: Folder, docker_image: object) -> Path | None:
    """Return `environment` if its files must be copied to a prebuilt image's working directory, else None."""
    if docker_image is None or (folder := files.subfolder("environment")) is None:
        return None
    names = os.listdir(folder)
    return folder if names and "Dockerfile" not in names else None

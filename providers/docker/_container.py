"""Converts a spec to a hardened container configuration, and a container to a SandboxInfo."""

import json
import random
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from sandboxkit.errors import ConfigurationError
from sandboxkit.provider import split_mounts
from sandboxkit.providers import _agent, _gvisor, _rules
from sandboxkit.providers._agent.launch import DEFAULT_WORKDIR, agent_flags
from sandboxkit.providers._rules import STRICT, Rule, at_least, is_root
from sandboxkit.types import SandboxInfo, SandboxSpec, SandboxState

AGENT_SOCKET = "@sandboxkit-agent"
"""An abstract socket, so that it works with a read-only root and a hostile /tmp."""

ID_PATTERN = re.compile(r"sandboxkit-[0-9a-f]{16}")
"""The provider ignores, and never deletes, a container whose name does not match."""
MARKER = "sandboxkit"
ORIGIN = "sandboxkit.origin"
"""What a container was made of, in JSON: for its snapshots. Every container has it, so none has an image's."""
_TAG_NAMES = "sandboxkit.tags"
_EXPIRES = "sandboxkit.expires"

# The minimum for PID 1: SETUID and SETGID to become the spec's user, KILL to end its processes,
# and CHOWN, which is dropped afterwards, to give it the workdir.
_CAPABILITIES = ("CHOWN", "KILL", "SETGID", "SETUID")
# Capabilities that root's commands may get, with their Linux numbers. KILL is missing on purpose:
# a command that held every capability of PID 1 could trace it.
_COMMAND_CAPABILITIES = {
    "CHOWN": 0,
    "DAC_OVERRIDE": 1,
    "FOWNER": 3,
    "FSETID": 4,
    "SETGID": 6,
    "SETUID": 7,
    "NET_BIND_SERVICE": 10,
    "NET_RAW": 13,
}
_MEMORY_MB = 1024
_PIDS = 256
_AGENT_PIDS = 32  # reserved for the agent's threads when commands use up the rest
_STRICT_DISK_MB = 512
# Uids that other containers are unlikely to have: on the host, and on a daemon that maps few uids.
_OWN_UIDS = range(1 << 20, 1_900_000_000)
_OWN_MAPPED_UIDS = range(20_000, 60_000)
_OPEN_FILES = 4096
_MIB = 1024 * 1024
_SECCOMP = Path(next(iter(_agent.__path__))) / "seccomp.json"
_STATES = {
    "created": SandboxState.STARTING,
    "running": SandboxState.RUNNING,
    "paused": SandboxState.RUNNING,
    "restarting": SandboxState.STARTING,
}


GO_SETTINGS = ["GODEBUG=", "GOGC=", "GOMEMLIMIT=", "GOTRACEBACK="]
"""Variables of Go's run-time library without a value, for the agent in an image that sets them."""


@dataclass(frozen=True, slots=True)
class ContainerImage:
    """The properties of an image that the provider needs."""

    reference: str
    id: str
    """What containers are made of, however the reference is used meanwhile."""
    user: str
    """The image's user; empty for root."""
    volumes: tuple[str, ...]
    env: tuple[str, ...] = ()
    """The image's variables, each as NAME=VALUE."""
    workdir: str = ""
    """The image's WORKDIR; empty for none."""
    snapshot: Mapping[str, Any] | None = None
    """The record of the snapshot that the image is."""


def agent_directory(sandbox_id: str) -> str:
    """Return where the agent's volume is mounted in a container of this name.

    An image is made before the random name is chosen, so it has no link there that leads the mount, or
    `docker exec` of the agent, to a program of its own. Nobody can rename a mount point or its parent, the root.
    """
    return f"/.{sandbox_id}"


def agent_path(sandbox_id: str) -> str:
    """Return the agent's path in a container of this name."""
    return f"{agent_directory(sandbox_id)}/agent"


def agent_mount(sandbox_id: str, volume: str) -> dict[str, object]:
    """Return the mount of the agent's volume in a container of this name."""
    return {
        "Type": "volume",
        "Source": volume,
        "Target": agent_directory(sandbox_id),
        "ReadOnly": True,
        "VolumeOptions": {"NoCopy": True},
    }


def check(spec: SandboxSpec) -> None:
    """Raise ConfigurationError for options that Docker cannot honour."""
    _rules.check(spec, RULES, provider="docker")


def device_requests(gpu: str | None) -> list[dict[str, object]]:
    """Return Docker's device requests for "all", a count such as "2", or "device=0,1".

    Returns [] for None, and for any other value, which `check` refuses.
    """
    request: dict[str, object] = {"Driver": "", "Capabilities": [["gpu"]]}
    if gpu == "all":
        return [request | {"Count": -1}]
    if gpu is not None and gpu.isascii() and gpu.isdigit() and int(gpu) > 0:
        return [request | {"Count": int(gpu)}]
    kind, _, devices = (gpu or "").partition("=")
    if kind == "device" and all(devices.split(",")):
        return [request | {"Count": 0, "DeviceIDs": devices.split(",")}]
    return []


LIMITS_REMEDY = "use systemd and control groups of version 2, or start the engine as root"
WITHOUT_LIMITS = _rules.never(
    dict.fromkeys(
        ("memory_mb", "pids", "cpus"),
        f"an engine without root limits nothing without systemd or with control groups of version 1; {LIMITS_REMEDY}",
    )
)
PODMAN = (
    Rule(
        "mounts",
        "Podman's service sets no access control list, without which sandboxes could not change each other's files; "
        "upload and download them",
        lambda spec: bool(split_mounts(spec.mounts)[1]),
        lambda spec: ", ".join(split_mounts(spec.mounts)[1]),
    ),
)
RULES = (
    *_gvisor.RULES,
    _gvisor.OWN_OR_GVISOR,
    Rule(
        "disk_mb",
        "its storage driver cannot limit a writable root; use profile='strict'",
        lambda spec: spec.disk_mb is not None and spec.profile != "strict",
    ),
    at_least("disk_mb", 2, "it is divided between two folders"),
    at_least("memory_mb", 16, "the agent alone needs it"),
    at_least("pids", 16, "the agent's own threads need them"),
    at_least("cpus", 0.01),
    *STRICT,
    Rule(
        "command",
        "with a snapshot and profile='strict' it would start before the files are there; start it with exec()",
        lambda spec: bool(spec.command and spec.snapshot and spec.profile == "strict"),
    ),
    Rule(
        "tags",
        "that label marks sandboxes; choose another name",
        lambda spec: MARKER in spec.tags,
        lambda spec: MARKER,
    ),
    Rule(
        "gpu",
        "use 'all', a count such as '1', or 'device=0,1'",
        lambda spec: spec.gpu is not None and not device_requests(spec.gpu),
    ),
)


def check_capabilities(names: Iterable[str]) -> tuple[str, ...]:
    """Return the names sorted, without "CAP_"; raises ConfigurationError for one that is not allowed."""
    added = sorted({name.upper().removeprefix("CAP_") for name in names})
    for name in added:
        if name not in _COMMAND_CAPABILITIES:
            raise ConfigurationError(
                f"capability {name!r} cannot be added; use one of "
                f"{', '.join(_COMMAND_CAPABILITIES)}"
            )
    return tuple(added)


def runs_as_root(spec: SandboxSpec, image: ContainerImage) -> bool:
    """Whether commands that name no user run as root; with profile="strict" or gVisor they never do."""
    user = spec.user or image.user
    never = spec.profile == "strict" or spec.isolation == "gvisor"
    return not never and (not user or is_root(user))


def own_user(security: Iterable[str]) -> str:
    """Return a random "uid:gid" for one container; `security` are the daemon's security options.

    The kernel counts some resources per host uid, so containers with a common uid could exhaust
    each other's.
    """
    mapped = any(option.startswith(("name=userns", "name=rootless")) for option in security)
    uid = random.choice(_OWN_MAPPED_UIDS if mapped else _OWN_UIDS)
    return f"{uid}:{uid}"


def create_body(
    spec: SandboxSpec,
    image: ContainerImage,
    *,
    name: str,
    own_user: str,
    agent_volume: str,
    runtime: str | None,
    network: str,
    capabilities: tuple[str, ...] = (),
    endpoint: bool = True,
    podman: bool = False,
    mounts: Mapping[str, str] = MappingProxyType({}),
    volumes: Iterable[Mapping[str, object]] = (),
) -> dict[str, object]:
    """Return the body of Docker's create call.

    `name` is the container's. `own_user` runs commands with profile="strict" or gVisor if neither the spec
    nor the image names a user other than root. Without `endpoint` the daemon sets up no network. Podman reads
    the list of system calls from a file, knows fewer options, and has a root that the agent cannot write to. `mounts`
    maps paths in the sandbox to paths on the daemon's machine, read-only; `volumes` are further mounts in
    Docker's words.
    Raises ConfigurationError for an image with volumes and profile="strict".
    """
    user = spec.user or image.user or None
    memory = (spec.memory_mb or _MEMORY_MB) * _MIB
    seccomp = str(_SECCOMP) if podman else _seccomp(spec.isolation == "gvisor")
    host: dict[str, object] = {
        "AutoRemove": True,
        "CapAdd": sorted({*_CAPABILITIES, *capabilities}),
        "CapDrop": ["ALL"],
        "DeviceRequests": device_requests(spec.gpu),
        "Init": False,
        "IpcMode": "private",
        "LogConfig": {"Type": "none"},
        "Memory": memory,
        "MemorySwap": memory,
        "Mounts": [
            agent_mount(name, agent_volume),
            *volumes,
            *(
                {"Type": "bind", "Source": source, "Target": target, "ReadOnly": True}
                for target, source in mounts.items()
            ),
        ],
        "NetworkMode": "none" if spec.network == "none" else network,
        # When memory runs out, the kernel kills sandboxes before the daemon and other programs.
        "OomScoreAdj": 500,
        "PidsLimit": (spec.pids or _PIDS) + _AGENT_PIDS,
        "RestartPolicy": {"Name": "no"},
        "SecurityOpt": ["no-new-privileges", f"seccomp={seccomp}"],
        # Its files are in the sandbox's memory: when they fill that, the sandbox is out of memory.
        "ShmSize": memory,
        "Ulimits": [
            {"Name": "nofile", "Soft": 2 * _OPEN_FILES, "Hard": 2 * _OPEN_FILES},
            {"Name": "core", "Soft": 0, "Hard": 0},
            {"Name": "memlock", "Soft": 64 * 1024, "Hard": 64 * 1024},
        ],
    }
    folders: dict[str, str] = {}
    gvisor = spec.isolation == "gvisor"
    if gvisor:
        host["PidsLimit"] = _gvisor.PIDS
        folders[_gvisor.SOCKET_FOLDER] = "rw,noexec,nosuid,nodev,size=64k,mode=0700"
    if (gvisor or spec.profile == "strict") and (user is None or is_root(user)):
        user = own_user
    if spec.cpus is not None:
        host["NanoCpus"] = int(spec.cpus * 1e9)
    if runtime is not None:
        host["Runtime"] = runtime
    if spec.profile == "strict":
        if image.volumes:
            raise ConfigurationError(
                f"profile='strict' cannot use image {image.reference!r}: it declares the volumes "
                f"{list(image.volumes)}, whose size Docker cannot limit"
            )
        host["ReadonlyRootfs"] = True
        # Podman would make these writable without a limit.
        folders |= dict.fromkeys(("/run", "/var/tmp"), "ro,size=4k") if podman else {}
        folders |= _strict_space(spec, None if podman else memory)
    if folders:
        host["Tmpfs"] = folders
    if spec.network == "none":
        host["ExtraHosts"] = ["sandbox:127.0.0.1"]  # with an address the daemon writes this name
    if spec.reuse == "reset":
        # Otherwise the next job could see closed connections (TIME_WAIT) for a minute.
        host["Sysctls"] = {"net.ipv4.tcp_max_tw_buckets": "0"}
    return {
        "Image": image.id,
        "Hostname": "sandbox",
        "NetworkDisabled": not endpoint,
        "User": "0:0",
        # They would slow the agent, which is a Go program, or stop it.
        "Env": [each for each in GO_SETTINGS if any(own.startswith(each) for own in image.env)],
        # Podman makes it if it is missing, for root.
        "WorkingDir": spec.workdir or DEFAULT_WORKDIR
        if podman and runs_as_root(spec, image)
        else "/",
        "Entrypoint": [agent_path(name)],
        "Cmd": agent_flags(
            spec,
            user=user,
            listen_path=_gvisor.SOCKET if gvisor else AGENT_SOCKET,
            open_files=_OPEN_FILES,
            gvisor=gvisor,
            image_workdir=image.workdir,
            name_user=True,
            no_root=spec.profile == "strict",
            command_caps=sum(1 << _COMMAND_CAPABILITIES[name] for name in capabilities),
        ),
        "Healthcheck": {"Test": ["NONE"]},
        "Labels": {
            **spec.tags,
            MARKER: "1",
            _TAG_NAMES: json.dumps(sorted(spec.tags)),
            ORIGIN: json.dumps(_origin(spec, image)),
        },
        "AttachStdin": True,
        "AttachStdout": True,
        "AttachStderr": True,
        "OpenStdin": True,
        # The lifeline: when the owner's connection ends, the daemon closes the agent's stdin.
        "StdinOnce": not spec.detach,
        "Tty": False,
        "HostConfig": host,
    }


def _origin(spec: SandboxSpec, image: ContainerImage) -> dict[str, str | None]:
    made_of = image.snapshot or {"image": image.reference, "user": image.user}
    kept = {key: made_of.get(key) for key in ("image", "user", "base")}
    return {**kept, "reference": image.reference, "parent": spec.snapshot}


def strict_folders(spec: SandboxSpec) -> list[str]:
    """Return the writable folders of a strict sandbox, except /dev/shm, sorted."""
    return sorted({"/tmp", spec.workdir or DEFAULT_WORKDIR})


def _strict_space(spec: SandboxSpec, memory: int | None) -> dict[str, str]:
    """Return mounts for the only writable folders, which share disk_mb.

    Each has an inode for each KiB of memory, which is what an inode takes, so that memory ends first.
    With None their number is the kernel's default, half of the pages of the machine's memory.
    """
    folders = strict_folders(spec)
    each = (spec.disk_mb or _STRICT_DISK_MB) * 1024 // len(folders)
    options = f"rw,exec,nosuid,nodev,size={each}k,mode=1777"
    options += "" if memory is None else f",nr_inodes={memory // 1024}"
    return dict.fromkeys(folders, options)


@cache
def _seccomp(gvisor: bool) -> str:
    """Return the profile's JSON, because the daemon does not read files of its clients."""
    profile = _gvisor.seccomp() if gvisor else json.loads(_SECCOMP.read_text())
    return json.dumps(profile, separators=(",", ":"))


def sandbox_info(
    name: str, state: str, labels: Mapping[str, str], image: str, created: datetime
) -> SandboxInfo:
    """Describe a container as a sandbox. Labels that came with the image are not tags."""
    tags = {key: labels[key] for key in _tag_names(labels) if key in labels}
    expires = _expires(tags)
    if state == "running" and expires is not None and expires < datetime.now(UTC):
        # It was renewed, or its agent would have ended it; Docker cannot change the label.
        del tags[_EXPIRES]
        expires = None
    return SandboxInfo(
        id=name,
        provider="docker",
        state=_STATES.get(state, SandboxState.STOPPED),
        tags=tags,
        image=json.loads(labels[ORIGIN])["reference"] if ORIGIN in labels else image,
        created_at=created,
        expires_at=expires,
    )


def _tag_names(labels: Mapping[str, str]) -> Iterable[str]:
    try:
        names: Any = json.loads(labels.get(_TAG_NAMES, "[]"))  # somebody may have edited it
    except ValueError:
        return ()
    return [name for name in names if isinstance(name, str)] if isinstance(names, list) else ()


def _expires(tags: Mapping[str, str]) -> datetime | None:
    try:
        return datetime.fromtimestamp(float(tags[_EXPIRES]), UTC)
    except (KeyError, ValueError, OverflowError, OSError):
        return None

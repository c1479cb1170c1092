"""What a sandbox is to Docker: the hardened container configuration for a spec, and back."""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from sandboxkit.errors import ConfigurationError
from sandboxkit.providers import _agent
from sandboxkit.providers._agent.launch import DEFAULT_WORKDIR, agent_flags
from sandboxkit.types import SandboxInfo, SandboxSpec, SandboxState

__all__ = [
    "AGENT_DIRECTORY",
    "AGENT_PATH",
    "AGENT_SOCKET",
    "ID_PATTERN",
    "MARKER",
    "Image",
    "check",
    "check_capabilities",
    "create_body",
    "runs_as_root",
    "sandbox_info",
]

AGENT_DIRECTORY = "/.sandboxkit"
AGENT_PATH = f"{AGENT_DIRECTORY}/agent"
AGENT_SOCKET = "@sandboxkit-agent"
"""Abstract, so that a read-only root and a hostile /tmp are no matter."""

ID_PATTERN = re.compile(r"sandboxkit-[0-9a-f]{16}")
"""Only containers with such names are ever looked at, let alone deleted."""
MARKER = "sandboxkit"
_TAG_NAMES = "sandboxkit.tags"
_EXPIRES = "sandboxkit.expires"

# The least that PID 1 needs: to become the spec's user, to kill its processes, and (before it
# drops that one too) to give it the workdir.
_CAPABILITIES = ("CHOWN", "KILL", "SETGID", "SETUID")
# What may be added for root's commands, by Linux's number. Never all that PID 1 has, or more:
# a command could then trace it.
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
_AGENT_PIDS = 32  # the threads of the agent, in reserve for when a command takes all the rest
_SHM_MB = 64
_STRICT_DISK_MB = 512
_STRICT_USER = "65534"
_INODES = 20_000
_OPEN_FILES = 4096
_MIB = 1024 * 1024
_STATES = {
    "created": SandboxState.STARTING,
    "running": SandboxState.RUNNING,
    "paused": SandboxState.RUNNING,
    "restarting": SandboxState.STARTING,
}


@dataclass(frozen=True, slots=True)
class Image:
    """What matters of an image that is present."""

    reference: str
    user: str
    """Empty: root."""
    volumes: tuple[str, ...]


def check(spec: SandboxSpec) -> None:
    """Refuse what Docker cannot honour; raises ConfigurationError."""

    def refuse(field: str, value: object, why: str) -> ConfigurationError:
        return ConfigurationError(
            f"docker cannot honour {field}={value!r}: {why}", provider="docker"
        )

    if spec.disk_mb is not None and spec.profile != "strict":
        raise refuse(
            "disk_mb",
            spec.disk_mb,
            "its storage driver cannot limit a writable root; use profile='strict'",
        )
    if spec.disk_mb is not None and spec.disk_mb < 2:
        raise refuse("disk_mb", spec.disk_mb, "it is divided between two folders; give 2 or more")
    if spec.memory_mb is not None and spec.memory_mb < 16:
        raise refuse("memory_mb", spec.memory_mb, "the agent alone needs 16")
    if spec.pids is not None and spec.pids < 16:
        raise refuse("pids", spec.pids, "the agent's own threads need 16")
    if spec.cpus is not None and spec.cpus < 0.01:
        raise refuse("cpus", spec.cpus, "the least is 0.01")
    if spec.profile == "strict":
        if spec.user is not None and _is_root(spec.user):
            raise refuse("user", spec.user, "profile='strict' runs nothing as root")
        if spec.workdir == "/":
            raise refuse("workdir", "/", "profile='strict' has a read-only root")
    if MARKER in spec.tags:
        raise refuse("tags", MARKER, "that label marks sandboxes; choose another name")
    device_requests(spec.gpu)


def device_requests(gpu: str | None) -> list[dict[str, object]]:
    """The request for "all", a count such as "2", or "device=0,1"; raises ConfigurationError."""
    if gpu is None:
        return []
    request: dict[str, object] = {"Driver": "", "Capabilities": [["gpu"]]}
    if gpu == "all":
        return [request | {"Count": -1}]
    if gpu.isascii() and gpu.isdigit() and int(gpu) > 0:
        return [request | {"Count": int(gpu)}]
    kind, _, devices = gpu.partition("=")
    if kind == "device" and all(devices.split(",")):
        return [request | {"Count": 0, "DeviceIDs": devices.split(",")}]
    raise ConfigurationError(
        f"docker cannot honour gpu={gpu!r}: use 'all', a count such as '1', or 'device=0,1'",
        provider="docker",
    )


def _is_root(user: str) -> bool:
    name = user.partition(":")[0]
    return name == "root" or (name.isdigit() and int(name) == 0)


def check_capabilities(names: Iterable[str]) -> tuple[str, ...]:
    """The names without "CAP_", sorted; raises ConfigurationError for what may not be added."""
    added = sorted({name.upper().removeprefix("CAP_") for name in names})
    for name in added:
        if name not in _COMMAND_CAPABILITIES:
            raise ConfigurationError(
                f"capability {name!r} cannot be added; use one of "
                f"{', '.join(_COMMAND_CAPABILITIES)}",
                provider="docker",
            )
    return tuple(added)


def runs_as_root(spec: SandboxSpec, image: Image) -> bool:
    """Whether commands that name no user are root's; those of profile="strict" never are."""
    user = spec.user or image.user
    return spec.profile != "strict" and (not user or _is_root(user))


def create_body(
    spec: SandboxSpec,
    image: Image,
    *,
    agent_volume: str,
    runtime: str | None,
    network: str,
    capabilities: tuple[str, ...] = (),
    endpoint: bool = True,
    mounts: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, object]:
    """The body of Docker's create call.

    Without an `endpoint` the daemon does nothing about a network. `mounts` are read-only: a path
    in the sandbox, and one on the daemon's machine.
    """
    user = spec.user or image.user or None
    host: dict[str, object] = {
        "AutoRemove": True,
        "CapAdd": sorted({*_CAPABILITIES, *capabilities}),
        "CapDrop": ["ALL"],
        "DeviceRequests": device_requests(spec.gpu),
        "Init": False,
        "IpcMode": "private",
        "LogConfig": {"Type": "none"},
        "Memory": (spec.memory_mb or _MEMORY_MB) * _MIB,
        "MemorySwap": (spec.memory_mb or _MEMORY_MB) * _MIB,
        "Mounts": [
            {
                "Type": "volume",
                "Source": agent_volume,
                "Target": AGENT_DIRECTORY,
                "ReadOnly": True,
                "VolumeOptions": {"NoCopy": True},
            },
            *(
                {"Type": "bind", "Source": source, "Target": target, "ReadOnly": True}
                for target, source in mounts.items()
            ),
        ],
        "NetworkMode": "none" if spec.network == "none" else network,
        # The daemon's own processes and other people's come first when memory runs out.
        "OomScoreAdj": 500,
        "PidsLimit": (spec.pids or _PIDS) + _AGENT_PIDS,
        "RestartPolicy": {"Name": "no"},
        "SecurityOpt": ["no-new-privileges", f"seccomp={_seccomp()}"],
        "ShmSize": _SHM_MB * _MIB,
        "Ulimits": [
            {"Name": "nofile", "Soft": _OPEN_FILES, "Hard": _OPEN_FILES},
            {"Name": "core", "Soft": 0, "Hard": 0},
            {"Name": "memlock", "Soft": 64 * 1024, "Hard": 64 * 1024},
        ],
    }
    if spec.cpus is not None:
        host["NanoCpus"] = int(spec.cpus * 1e9)
    if runtime is not None:
        host["Runtime"] = runtime
    if spec.profile == "strict":
        if user is None or _is_root(user):
            user = _STRICT_USER
        if image.volumes:
            raise ConfigurationError(
                f"profile='strict' cannot use image {image.reference!r}: it declares the volumes "
                f"{list(image.volumes)}, whose size Docker cannot limit",
                provider="docker",
            )
        host["ReadonlyRootfs"] = True
        host |= _strict_space(spec)
    if spec.reuse == "reset":
        # A connection that ended would be seen by the next job for a minute.
        host["Sysctls"] = {"net.ipv4.tcp_max_tw_buckets": "0"}
    return {
        "Image": image.reference,
        "Hostname": "sandbox",
        "NetworkDisabled": not endpoint,
        "User": "0:0",
        "Env": [],
        "WorkingDir": "/",
        "Entrypoint": [AGENT_PATH],
        "Cmd": agent_flags(
            spec,
            user=user,
            listen_path=AGENT_SOCKET,
            command_caps=sum(1 << _COMMAND_CAPABILITIES[name] for name in capabilities),
        ),
        "Healthcheck": {"Test": ["NONE"]},
        "Labels": {**spec.tags, MARKER: "1", _TAG_NAMES: json.dumps(sorted(spec.tags))},
        "AttachStdin": True,
        "AttachStdout": True,
        "AttachStderr": True,
        "OpenStdin": True,
        # The daemon closes the agent's stdin with the owner's connection: the lifeline.
        "StdinOnce": not spec.detach,
        "Tty": False,
        "HostConfig": host,
    }


def _strict_space(spec: SandboxSpec) -> dict[str, object]:
    """The only writable folders: /tmp, the workdir and /dev/shm, disk_mb together."""
    kib = (spec.disk_mb or _STRICT_DISK_MB) * 1024
    shm = min(_SHM_MB * 1024, kib // 8)
    folders = {"/tmp", spec.workdir or DEFAULT_WORKDIR}
    each = (kib - shm) // len(folders)
    options = f"rw,exec,nosuid,nodev,size={each}k,nr_inodes={_INODES},mode=1777"
    return {"Tmpfs": dict.fromkeys(sorted(folders), options), "ShmSize": shm * 1024}


@cache
def _seccomp() -> str:
    """The profile itself, as the daemon wants it; it does not read files of its clients."""
    path = Path(next(iter(_agent.__path__))) / "seccomp.json"
    return json.dumps(json.loads(path.read_text()), separators=(",", ":"))


def sandbox_info(
    name: str, state: str, labels: Mapping[str, str], image: str, created: datetime
) -> SandboxInfo:
    """A container as a sandbox; labels that only the image brought are no tags."""
    tags = {key: labels[key] for key in _tag_names(labels) if key in labels}
    expires = _expires(tags)
    if state == "running" and expires is not None and expires < datetime.now(UTC):
        # Its agent would have ended it: it was renewed, which no label can say.
        del tags[_EXPIRES]
        expires = None
    return SandboxInfo(
        id=name,
        provider="docker",
        state=_STATES.get(state, SandboxState.STOPPED),
        tags=tags,
        image=image,
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

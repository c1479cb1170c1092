"""Plain values shared by the SDK and the providers."""

from collections.abc import AsyncIterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Literal

__all__ = [
    "Command",
    "Diagnosis",
    "FileInfo",
    "FileType",
    "Network",
    "Profile",
    "PtySize",
    "SandboxInfo",
    "SandboxSpec",
    "SandboxState",
    "StdinItem",
    "Usage",
]

Network = Literal["none", "internet"]
Profile = Literal["standard", "strict"]


class SandboxState(StrEnum):
    """Where a sandbox is in its life. A deleted sandbox has no state: it is not listed."""

    STARTING = "starting"
    RUNNING = "running"
    STOPPED = "stopped"


class FileType(StrEnum):
    """What a path in a sandbox is; links are never followed to find out."""

    FILE = "file"
    DIRECTORY = "directory"
    SYMLINK = "symlink"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class SandboxSpec:
    """Everything that describes a sandbox, in the one place where options are declared.

    `None` for a limit means the provider's own safe default. A value given must be honoured:
    a provider that cannot raises `ConfigurationError` naming the field.
    """

    image: str | None = None
    """Image reference, or a root folder or OCI archive on local. None: the provider's default."""
    command: tuple[str, ...] | None = None
    """A main command to start with the sandbox; `logs()` shows it and `wait()` waits for it."""
    env: Mapping[str, str] = field(default_factory=dict)
    workdir: str | None = None
    """Absolute directory where commands start; created if missing. None: /workspace."""
    user: str | None = None
    """User name or numeric uid for commands and file calls. None: the image's."""
    cpus: float | None = None
    memory_mb: int | None = None
    """Memory limit in MiB, swap included."""
    disk_mb: int | None = None
    """Limit in MiB on what the sandbox may write."""
    pids: int | None = None
    network: Network = "none"
    lifetime: float | None = 3600.0
    """Seconds after which the sandbox ends itself. None: no limit, not allowed with detach."""
    tags: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, bytes] = field(default_factory=dict)
    """Files to write before the first command: absolute sandbox path to content."""
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Environment variables whose values never appear in reprs, labels or listings."""
    gpu: str | None = None
    profile: Profile = "standard"
    """`strict`: read-only root, sized writable folders, a non-root user."""
    detach: bool = False
    """Outlive the session and this process; the lifetime still ends the sandbox."""


@dataclass(frozen=True, slots=True)
class SandboxInfo:
    """What a backend says about one sandbox."""

    id: str
    provider: str
    state: SandboxState
    tags: Mapping[str, str]
    """All of the sandbox's tags, those of sandboxkit itself (`sandboxkit.*`) included."""
    image: str | None = None
    created_at: datetime | None = None
    expires_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class PtySize:
    """A terminal's size in character cells."""

    rows: int = 24
    cols: int = 80


StdinItem = bytes | PtySize
"""What a command's input carries: bytes for the program, sizes for its terminal."""


@dataclass(frozen=True, slots=True)
class Command:
    """One command as a provider receives it; timeouts are the core's business."""

    argv: tuple[str, ...]
    cwd: str | None = None
    """Absolute, or None for the sandbox's workdir."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Added to the sandbox's own environment."""
    user: str | None = None
    """None: the sandbox's user."""
    stdin: AsyncIterable[StdinItem] | None = None
    """None: the null device. The end of the iteration closes the command's stdin."""
    pty: PtySize | None = None
    """Run on a terminal of this first size; all output is then `stdout`."""


@dataclass(frozen=True, slots=True)
class FileInfo:
    """One path in a sandbox."""

    path: str
    type: FileType
    size: int
    """Bytes."""
    mode: int
    """Permission bits, such as 0o644."""
    mtime: float
    """Seconds since the epoch."""


@dataclass(frozen=True, slots=True)
class Usage:
    """What a sandbox uses, and has used since its start. None: its backend cannot know."""

    processor_seconds: float | None
    """Of all its processes, ended ones included; without what sandboxkit itself runs in it."""
    starved_seconds: float | None
    """How long it was ready to run, at ordinary priority, while others had the processors. Never
    more than others took plus `processor_seconds`; less where its processes were short-lived."""
    processes: int | None
    memory_bytes: int | None
    """Resident memory of its processes; pages that they share count for each."""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Whether a provider can work on this machine, for `sandboxkit doctor`."""

    available: bool
    isolation: str
    """What separates a sandbox from this machine, in a few words."""
    detail: str
    """What was found: versions, limits that are missing."""
    remedy: str = ""
    """What to do where it is not available or not complete."""

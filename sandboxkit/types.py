"""Plain values shared by the SDK and the providers."""

from collections.abc import AsyncIterable, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Literal

from sandboxkit.display import Shown

__all__ = [
    "Command",
    "CommandUsage",
    "Diagnosis",
    "Ending",
    "Exit",
    "FileInfo",
    "FileType",
    "Interpreter",
    "Network",
    "Output",
    "PoolStats",
    "ProcessResult",
    "Profile",
    "PtySize",
    "Reuse",
    "SandboxInfo",
    "SandboxSpec",
    "SandboxState",
    "StdinItem",
    "StreamName",
    "Usage",
]

Network = Literal["none", "internet"]
Profile = Literal["standard", "strict"]
Reuse = Literal["never", "reset"]


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
class Interpreter:
    """A Python of the sandbox's, which runs before anything else does there; see `run_python`."""

    program: str = "python3"
    preload: tuple[str, ...] = ()
    """Modules that it has imported when the first code comes."""
    setup: str = ""
    """Code that it has run by then, after the imports and in a namespace apart: what that leaves in
    modules is there for every job. It is no place for what a job must not see."""


@dataclass(frozen=True, slots=True)
class SandboxSpec:
    """Everything that describes a sandbox: types and defaults; `help(Session)` says what each means.

    `None` for a limit means the provider's own safe default. A value given must be honoured:
    a provider that cannot raises `ConfigurationError` naming the field.
    """

    image: str | None = None
    command: tuple[str, ...] | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    workdir: str | None = None
    user: str | None = None
    cpus: float | None = None
    memory_mb: int | None = None
    disk_mb: int | None = None
    pids: int | None = None
    network: Network = "none"
    lifetime: float | None = 3600.0
    tags: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, bytes] = field(default_factory=dict)
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    gpu: str | None = None
    profile: Profile = "standard"
    detach: bool = False
    interpreter: Interpreter | None = None
    reuse: Reuse = "never"


@dataclass(frozen=True, slots=True)
class SandboxInfo(Shown):
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


StreamName = Literal["stdout", "stderr"]

Output = Callable[[StreamName, bytes], Awaitable[None]]
"""Where `Provider.exec` delivers output; awaiting it is the backpressure."""


class Ending(StrEnum):
    """Who or what ended a command."""

    EXITED = "exited"
    """It came to its own end, whatever the status."""
    SIGNAL = "signal"
    """A signal from within its sandbox killed it."""
    OUT_OF_MEMORY = "out_of_memory"
    """The kernel killed it, because its sandbox used more memory than it has."""
    TIMED_OUT = "timed_out"
    """It ran past its timeout, and sandboxkit killed it."""
    KILLED = "killed"
    """Its caller killed it, with `Process.kill()`."""


@dataclass(frozen=True, slots=True)
class CommandUsage:
    """What one command used. None: its backend cannot know."""

    processor_seconds: float | None = None
    """Of the command and of the children that it waited for."""
    peak_memory_bytes: int | None = None
    """The most that one of these processes had resident."""
    throttled_seconds: float | None = None
    """How long its whole sandbox was held back meanwhile, by its own `cpus` limit."""
    oom_kills: int | None = None
    """How many processes of its whole sandbox the kernel killed meanwhile for want of memory."""


@dataclass(frozen=True, slots=True)
class Exit:
    """How a command ended, as its provider reports it."""

    status: int
    """0 to 255; 128 + n when signal n killed it."""
    ending: Ending | None = None
    """None where the backend does not tell a signal from a status above 128."""
    usage: CommandUsage = CommandUsage()


@dataclass(frozen=True, slots=True)
class ProcessResult(Shown):
    """What a command left behind. `stdout` and `stderr` are text, `*_bytes` the exact bytes."""

    argv: tuple[str, ...]
    returncode: int
    """0 to 255; 128 + n when signal n killed the command."""
    stdout_bytes: bytes
    stderr_bytes: bytes
    truncated: bool
    """Whether the middle of a stream was dropped because it was over the output limit."""
    duration: float
    """Seconds from the start of the command to its end."""
    ending: Ending | None = None
    """Who ended it; None where the backend does not tell a signal from a status above 128."""
    usage: CommandUsage = CommandUsage()

    @property
    def stdout(self) -> str:
        """Standard output decoded as UTF-8, with U+FFFD for what is not."""
        return self.stdout_bytes.decode(errors="replace")

    @property
    def stderr(self) -> str:
        """Standard error decoded as UTF-8, with U+FFFD for what is not."""
        return self.stderr_bytes.decode(errors="replace")


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
class PoolStats:
    """What a session's pool has now, and what has become of the rest since it was opened."""

    ready: int
    making: int
    resetting: int
    taken: int
    """Sandboxes that can be pooled and are in somebody's hands, or being created for them."""
    waiting: int
    """Starts that wait for room, or for one that is being made or reset."""
    hits: int
    """Starts that found one ready."""
    waits: int
    """Starts that waited for one that was being made or reset."""
    misses: int
    """Starts that had to create their own."""
    made: int
    reset: int
    thrown_away: Mapping[str, int]
    """How many by reason, such as "not clean", "dead" and "not wanted lately"."""
    recent: tuple[str, ...]
    """The newest failures and sandboxes thrown away, each with its time and reason."""
    paused_seconds: float
    """For how long no creation begins: the backend has no room, or asked to wait."""


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

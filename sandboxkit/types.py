"""Plain values shared by the SDK and the providers."""

from collections.abc import AsyncIterable, AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, ClassVar, Literal

from sandboxkit._calls._foreign_names import foreign_names
from sandboxkit.display import Displayable

if TYPE_CHECKING:
    from sandboxkit.egress import Egress, NativeRules

__all__ = [
    "Command",
    "CommandFile",
    "CommandInput",
    "CommandSeries",
    "CommandSetup",
    "CommandUsage",
    "Diagnosis",
    "Dockerfile",
    "Ending",
    "Exit",
    "FileInfo",
    "FileType",
    "Instruction",
    "Interpreter",
    "Network",
    "Output",
    "PoolStats",
    "ProcessResult",
    "Profile",
    "PtySize",
    "PublicUrl",
    "ResourceName",
    "Reuse",
    "SandboxInfo",
    "SandboxSpec",
    "SandboxState",
    "SnapshotInfo",
    "SnapshotKind",
    "SnapshotRequest",
    "StdinItem",
    "StreamName",
    "Usage",
    "WholeInput",
]

Network = Literal["none", "internet"]
Profile = Literal["standard", "strict"]
Reuse = Literal["never", "reset"]
ResourceName = Literal["core", "cpu", "fsize", "stack"]
"""A resource of setrlimit(2): `cpu` in seconds, the others in bytes."""
SnapshotKind = Literal["files", "memory"]
"""The content of a snapshot: files alone, or files and running processes."""


class SandboxState(StrEnum):
    """The lifecycle state of a sandbox. A deleted sandbox has no state: it is not listed."""

    STARTING = "starting"
    RUNNING = "running"
    PAUSED = "paused"
    """All programs stand still until `Sandbox.resume()`."""
    STOPPED = "stopped"


class FileType(StrEnum):
    """The type of a path in a sandbox; symlinks are not followed."""

    FILE = "file"
    DIRECTORY = "directory"
    SYMLINK = "symlink"
    OTHER = "other"


@dataclass(frozen=True, slots=True)
class Interpreter:
    """A Python that starts before anything else in the sandbox; see `run_python`."""

    program: str = "python3"
    preload: tuple[str, ...] = ()
    """Modules to import before the first job."""
    setup: str = ""
    """Code to run after the imports, in a separate namespace. Every job sees its changes to
    modules, so it must not hold anything that a job must not see."""


@dataclass(frozen=True, slots=True)
class SandboxSpec:
    """The complete description of a sandbox; `help(Session)` explains each option.

    `None` for a limit means the provider's own safe default. A provider honours every value that
    is given, or raises `ConfigurationError` naming the field.
    """

    image: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    workdir: str | None = None
    user: str | None = None
    cpus: float | None = None
    memory_mb: int | None = None
    disk_mb: int | None = None
    pids: int | None = None
    gpu: str | None = None
    profile: Profile = "standard"
    isolation: Literal["namespaces", "landlock", "gvisor"] | None = None
    lifetime: float | None = 3600.0
    public_ports: tuple[int, ...] = ()
    start_timeout: float | None = None
    network: Network = "none"
    command: tuple[str, ...] | None = None
    tags: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, bytes] = field(default_factory=dict)
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    detach: bool = False
    interpreter: Interpreter | None = None
    reuse: Reuse = "never"
    mounts: Mapping[str, str] = field(default_factory=dict)
    """Maps folders in the sandbox to a dataset's digest or to "volume:" and a name; `split_mounts` of
    `sandboxkit.provider` tells them apart."""
    snapshot: str | None = None
    """The id of the snapshot whose files the sandbox starts with."""
    egress: "Egress | None" = None
    """The rules of `network=Egress(...)`, which this process enforces; `network` is "none" then. Providers
    ignore the field."""
    native_rules: "NativeRules | None" = None
    """The rules of `network=Egress(native=True)`, which the backend enforces; `network` is "none" then. See
    `Provider.native_egress`."""


@dataclass(frozen=True, slots=True)
class PublicUrl:
    """The address of a sandbox's port at its vendor, outside this machine."""

    url: str
    access: Literal["anyone", "token"]
    """Who can reach the port: "anyone" who knows the address, or whoever sends a "token" in `headers`."""
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    """The headers that requests need: the token, and those by which a server of one's own finds the sandbox."""


@foreign_names
@dataclass(frozen=True, slots=True)
class SandboxInfo(Displayable):
    """One sandbox as its backend reports it."""

    id: str
    provider: str
    state: SandboxState
    tags: Mapping[str, str]
    """All tags of the sandbox, including those of sandboxkit itself (`sandboxkit.*`)."""
    image: str | None = None
    created_at: datetime | None = None
    expires_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class SnapshotInfo(Displayable):
    """One snapshot as its backend reports it."""

    id: str
    provider: str
    kind: SnapshotKind
    bytes: int | None
    """The storage in bytes that the snapshot uses at the backend; None if the backend cannot tell."""
    created_at: datetime
    expires_at: datetime | None
    """When clean-up may remove it; None: never."""
    parent: str | None = None
    """The id of the snapshot from which its sandbox had started; None if it had started from an image."""
    name: str | None = None
    tags: Mapping[str, str] = field(default_factory=dict)
    used_at: datetime | None = None
    """When a sandbox last started from it, or a build found it; None if neither, or if the backend does not
    record it."""
    image_tag: ClassVar[str] = "sandboxkit-image"
    """The tag of an image's snapshot; its value is the recipe's digest."""


@dataclass(frozen=True, slots=True)
class SnapshotRequest:
    """A request for a snapshot: its kind, and the data that are stored with it."""

    kind: SnapshotKind
    name: str | None
    tags: Mapping[str, str]
    expires: float
    """When it expires (seconds since the epoch)."""


@dataclass(frozen=True, slots=True)
class PtySize:
    """A terminal's size in character cells."""

    rows: int = 24
    cols: int = 80


StdinItem = bytes | PtySize
"""One item of a command's input: bytes for the program, or a new size for its terminal."""


@dataclass(frozen=True, slots=True)
class WholeInput:
    """A command's input that is known from the start. A provider may send it along with the command."""

    data: bytes

    async def __aiter__(self) -> AsyncIterator[StdinItem]:
        if self.data:
            yield self.data


@dataclass(frozen=True, slots=True)
class CommandFile:
    """A file that is written before a command starts, as `Sandbox.write_file` writes it."""

    path: str
    content: bytes = field(repr=False)
    mode: int | None = None
    reused: bool = False
    """Whether later commands bring the same content. A provider may then keep it, where no command can
    reach it, and send it only once. It is not kept without a mode."""


@dataclass(frozen=True, slots=True)
class CommandSetup:
    """The files and resource limits of a command. They are in place before the command starts."""

    files: tuple[CommandFile, ...] = ()
    """The files to write, in this order."""
    rlimits: Mapping[ResourceName, tuple[int | None, int | None]] = field(default_factory=dict)
    """The soft and the hard limit of resources. A hard limit of None stays as it is, and a soft limit of
    None becomes the hard limit. No limit is raised above the sandbox's hard limit."""


@dataclass(frozen=True, slots=True)
class Command:
    """One command as a provider receives it; the core applies timeouts."""

    argv: tuple[str, ...]
    cwd: str | None = None
    """An absolute path, or None for the sandbox's workdir."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Variables that are added to the sandbox's own environment."""
    user: str | None = None
    """The user to run as, or None for the sandbox's user."""
    stdin: AsyncIterable[StdinItem] | None = None
    """The input, or None for the null device. The end of the iteration closes stdin. It is a `WholeInput`
    where it is known from the start."""
    pty: PtySize | None = None
    """The initial size of a terminal to run on, or None for pipes. On a terminal all output is
    `stdout`."""
    setup: CommandSetup | None = None
    """Files and resource limits. `exec` gets one only if `Box.set_up` left it."""


@dataclass(frozen=True, slots=True)
class CommandInput:
    """The input of one run of `Sandbox.exec_each`: stdin, and arguments that are added to the command's."""

    stdin: bytes = field(default=b"", repr=False)
    args: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CommandSeries:
    """The inputs of `Sandbox.exec_each`, and the limits at which it ends early."""

    inputs: tuple[CommandInput, ...]
    seconds: float
    """The most elapsed time (s) of a run, and the most CPU time of everything in the sandbox."""
    total_seconds: float = 0.2
    """The elapsed time (s) after which no run starts."""
    output_bytes: int = 256 << 10
    """The most bytes that a run may print, stdout and stderr together."""


StreamName = Literal["stdout", "stderr"]

Output = Callable[[StreamName, bytes], Awaitable[None]]
"""The callback to which `Box.exec` delivers output; awaiting it applies back-pressure."""


class Ending(StrEnum):
    """The cause of a command's end."""

    EXITED = "exited"
    """The command exited by itself, whatever its status."""
    SIGNAL = "signal"
    """A signal from within its sandbox killed the command."""
    OUT_OF_MEMORY = "out_of_memory"
    """The Linux kernel killed the command, because its sandbox exceeded its memory."""
    TIMED_OUT = "timed_out"
    """The command ran past its timeout, and sandboxkit killed it."""
    KILLED = "killed"
    """The caller killed the command with `Process.kill()`."""


@dataclass(frozen=True, slots=True)
class CommandUsage:
    """The resources that one command used. None: the backend cannot measure it."""

    processor_seconds: float | None = None
    """CPU time (s) of the command and of the children that it waited for."""
    peak_memory_bytes: int | None = None
    """The largest resident size of any one of these processes."""
    throttled_seconds: float | None = None
    """How long (s) the sandbox's `cpus` limit throttled the whole sandbox meanwhile."""
    oom_kills: int | None = None
    """How many processes of the whole sandbox the OOM killer killed meanwhile."""


@dataclass(frozen=True, slots=True)
class Exit:
    """How a command ended, as its provider reports it."""

    status: int
    """0 to 255; 128 + n if signal n killed the command."""
    ending: Ending | None = None
    """None if the backend cannot tell a signal from a status above 128."""
    usage: CommandUsage = CommandUsage()


@foreign_names
@dataclass(frozen=True, slots=True)
class ProcessResult(Displayable):
    """The result of a command. `stdout` and `stderr` are text, `*_bytes` the exact bytes."""

    argv: tuple[str, ...]
    returncode: int
    """The exit status, 0 to 255; 128 + n if signal n killed the command."""
    stdout_bytes: bytes
    stderr_bytes: bytes
    truncated: bool
    """Whether a stream exceeded the output limit, so that its middle was dropped."""
    duration: float
    """Seconds from the start of the command to its end."""
    ending: Ending | None = None
    """Who or what ended it; None if the backend cannot tell a signal from a status above 128."""
    usage: CommandUsage = CommandUsage()
    refused: tuple[str, ...] = ()
    """The servers, as "name:port", that `Egress` refused to the sandbox meanwhile; at most the last 64."""

    @property
    def stdout(self) -> str:
        """Standard output decoded as UTF-8; undecodable bytes become U+FFFD."""
        return self.stdout_bytes.decode(errors="replace")

    @property
    def stderr(self) -> str:
        """Standard error decoded as UTF-8; undecodable bytes become U+FFFD."""
        return self.stderr_bytes.decode(errors="replace")


@foreign_names
@dataclass(frozen=True, slots=True)
class FileInfo:
    """The metadata of one path in a sandbox."""

    path: str
    """The absolute path."""
    type: FileType
    size: int
    """Size in bytes."""
    mode: int
    """Permission bits, such as 0o644."""
    mtime: float
    """Seconds since the epoch."""

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.path.rpartition("/")[2]


@dataclass(frozen=True, slots=True)
class Usage:
    """The resources that a sandbox uses now or has used since its start. None: not measurable."""

    processor_seconds: float | None
    """CPU time (s) of all processes, including ended ones, without sandboxkit's own processes."""
    starved_seconds: float | None
    """How long (s) it was ready to run, at ordinary priority, while others had the CPUs. At most
    the CPU time of others plus `processor_seconds`; too low for short-lived processes."""
    processes: int | None
    memory_bytes: int | None
    """Resident memory of all processes; a shared page counts once for each process."""
    sent_bytes: int | None = None
    """Bytes that this process has sent to the sandbox's agent, including what frames add."""
    received_bytes: int | None = None
    """Bytes that this process has received from the sandbox's agent, including what frames add."""


@dataclass(frozen=True, slots=True)
class PoolStats:
    """The sandboxes in a session's pool now, and totals since the session was opened."""

    ready: int
    making: int
    resetting: int
    taken: int
    """Sandboxes that can be pooled and are in use, or are being created for a caller."""
    waiting: int
    """Starts that wait for room, or for a sandbox that is being made or reset."""
    hits: int
    """Starts that found a ready sandbox."""
    waits: int
    """Starts that waited for a sandbox that was being made or reset."""
    misses: int
    """Starts that had to create a sandbox."""
    made: int
    reset: int
    thrown_away: Mapping[str, int]
    """Number of discarded sandboxes by reason, such as "not clean", "dead", "not wanted lately"."""
    recent: tuple[str, ...]
    """The newest failures and discarded sandboxes, each with its time and reason."""
    paused_seconds: float
    """Seconds until sandboxes are created again; the backend was full or asked to wait."""


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """Whether a provider can work on this machine, for `sandboxkit doctor`."""

    available: bool
    isolation: str
    """The isolation mechanism between sandbox and machine, in a few words."""
    detail: str
    """Findings, such as versions and missing limits."""
    remedy: str = ""
    """The remedy if the provider is unavailable or incomplete."""


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction of a Dockerfile."""

    line: int
    text: str
    """The instruction on one line, without what a here-document has."""
    flags: str = ""
    """The options before its arguments, such as "--from=base --chown=1:1"."""
    heredoc: bool = False

    @property
    def name(self) -> str:
        """The first word, in capitals."""
        return self.text.partition(" ")[0]


@dataclass(frozen=True, slots=True)
class Dockerfile:
    """A Dockerfile that was checked, and what its builder needs besides."""

    path: str
    folder: str
    """The context, which the builder reads by its own rules and those of .dockerignore."""
    text: str
    """The text for the builder: images have their checked names, and instructions that sandboxes ignore are left out."""
    target: str | None
    args: tuple[tuple[str, str], ...]
    secrets: tuple[str, ...]
    """Each as in `docker build --secret`, such as "id=token,src=FILE"."""
    instructions: tuple[Instruction, ...]
    notes: tuple[str, ...]
    """Sentences for people, on instructions that are ignored or mean something else."""
    base: str
    """The image with which the last stage, or the target, begins."""
    workdir: str
    """The last WORKDIR of that stage; "" for none."""
    needs_build: bool
    """Whether there is more than a base with a working folder."""

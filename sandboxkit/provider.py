"""The contract between sandboxkit and a sandbox backend: all that a provider author needs.

A provider is one class. Four methods are required: `create`, `exec`, `list` and `delete`. The
other methods have defaults, many of them built on `exec`, which a provider may override. All
methods run on sandboxkit's background event loop. `sandboxkit.testing.ProviderConformance`
checks the contract.

Providers implement no timeouts: the core cancels `exec`. They do not retry, do not track what they
created, and raise only errors of `sandboxkit.errors`. Pass each connection whose end tells the
backend that this process is gone to `close_in_forks`; otherwise a forked child keeps it open.
`state_folder` returns the folder for state that a user's processes share about local sandboxes, and
`DatasetStore` has the snapshots that `spec.mounts` names; `split_mounts` tells them from volumes. `age` and
`is_expired` judge a SandboxInfo or SnapshotInfo of a backend's by clocks that no jump makes older. `owner` names this process,
and `is_gone` tells whether one of that name has ended.
"""

import builtins
import inspect
from abc import ABC, abstractmethod
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Mapping,
)
from typing import Any, ClassVar

from anyio.abc import ByteStream

from sandboxkit import _exec_files
from sandboxkit._first_command import FirstCommand
from sandboxkit._forks import close_in_forks
from sandboxkit._owners import age, is_expired, is_gone, owner
from sandboxkit._provider_errors import completing_errors
from sandboxkit._state_folder import state_folder
from sandboxkit._threads import no_thread
from sandboxkit.datasets import DatasetStore, split_mounts, volume_of
from sandboxkit.errors import ConfigurationError, SandboxError, SandboxNotFoundError, VolumeError
from sandboxkit.types import (
    Command,
    CommandSeries,
    Diagnosis,
    Exit,
    FileInfo,
    Interpreter,
    Output,
    ProcessResult,
    PublicUrl,
    SandboxInfo,
    SandboxSpec,
    SandboxState,
    SnapshotInfo,
    SnapshotKind,
    StreamName,
    Usage,
)

__all__ = [
    "DatasetStore",
    "FirstCommand",
    "Output",
    "PortListener",
    "Provider",
    "StreamName",
    "age",
    "close_in_forks",
    "is_expired",
    "is_gone",
    "no_thread",
    "owner",
    "split_mounts",
    "state_folder",
    "volume_of",
]


class PortListener(ABC):
    """A port of a sandbox's loopback on which the provider listens, until it is closed."""

    def __init__(self, port: int) -> None:
        self.port = port

    @abstractmethod
    async def accept(self) -> ByteStream:
        """Wait for a connection; several tasks may wait at once, which takes connections faster.

        The stream is as `Provider.connect` describes it. Raises ClosedResourceError once the listener
        is closed, and SandboxError if the sandbox ended or the connection to it broke.
        """

    @abstractmethod
    async def aclose(self) -> None:
        """Stop listening. Accepted connections stay open. Idempotent."""


class Provider(ABC):
    """One backend. Implement the four abstract methods; the rest have defaults built on them.

    Errors that a method of a subclass raises need not say which provider and which sandbox they concern.
    """

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        for name, method in [*vars(cls).items()]:
            if inspect.isfunction(method) and (name == "__init__" or not name.startswith("_")):
                setattr(cls, name, completing_errors(method))

    def _completed(self, error: SandboxError, sandbox_id: str | None) -> SandboxError:
        """Return the error of a method for its caller, which says which provider and which sandbox it was."""
        error.provider = error.provider or getattr(self, "name", None)
        error.sandbox_id = error.sandbox_id or sandbox_id
        return error

    name: ClassVar[str]
    """The entry point's name, such as "docker"."""

    on_this_machine: ClassVar[bool] = False
    """Whether sandboxes use this machine's CPUs and memory. If so, `max_live` applies, and the first
    start of each session sweeps orphaned sandboxes."""

    native_egress: ClassVar[bool] = False
    """Whether `create` honours `spec.native_rules` by the backend's own means: the sandbox then reaches
    exactly these names and networks, although `spec.network` is "none". If False, the rules are None."""

    def check(self, spec: SandboxSpec) -> None:
        """Refuse a spec that this backend cannot honour, before any I/O.

        Raises:
            ConfigurationError: naming the field, its value and the remedy.
        """

    @abstractmethod
    async def create(self, spec: SandboxSpec) -> str:
        """Start a sandbox and return its id, a flat string that another process can use.

        Returned: the id, once commands can run. `spec.workdir` exists. The core, not the provider,
        writes `spec.files`.
        The spec's tags are stored with the sandbox, all of them, as the backend's own labels.
        Raised: `ImageNotFoundError`, `CapacityError`, `SandboxStartError`,
        `ProviderUnavailableError`, `AuthenticationError`.
        Failed or cancelled: nothing of the sandbox exists when the call returns.
        Not detached: the sandbox ends soon after this process does, if the backend can.
        Always: the sandbox ends by itself after `spec.lifetime` seconds, unless that is None.
        """

    async def create_for(self, spec: SandboxSpec, first: FirstCommand) -> str:
        """Create a sandbox as `create` does, for a first command; the default ignores the command.

        A provider may send the command along with the start, which saves a round trip, but only if
        `first.claim()` returns True. `exec` is then called with the same `first.command` object, and
        returns how it ended. If the start fails, call `first.refuted()` once it is proven that the
        command was not started; otherwise the core raises OutcomeUnknownError. If the call fails or is
        cancelled, the sandbox and the command have ended when it returns.
        """
        return await self.create(spec)

    @abstractmethod
    async def exec(self, sandbox_id: str, command: Command, output: Output) -> Exit:
        """Run a command and return how it ended.

        Returned: the end of a command that was started, and never a guess: `ending` and each
        figure of `usage` are None where this backend cannot know them.
        Raised: `CommandStartError` when it was not started: no such program, one that cannot be
        executed, a `cwd` that cannot be entered, no room for another process.
        `SandboxNotFoundError` if there is no such sandbox, `SandboxTerminatedError` if
        the sandbox ends meanwhile, `ConfigurationError` for an option that cannot be honoured,
        `ProviderUnavailableError` if the connection breaks before the command can have started,
        `OutcomeUnknownError` if it breaks or falls silent later. Never for the program's own
        failure, and never a status for a command that was not started.
        Started: at most once, whatever breaks.
        Output is delivered exactly, in order per stream, while the command runs; all of it has
        been delivered when the call returns. A background child that holds stdout open does
        not hold up the return once the command itself has exited.
        Cancelled: the command's whole process tree is dead when the call returns, children
        that called setsid or were orphaned included, and other commands of the same sandbox
        are untouched. If this cannot be confirmed, `OutcomeUnknownError` is raised instead.
        """

    async def set_up(self, sandbox_id: str, command: Command) -> Command:
        """Return the command that `exec` gets for one that has a setup.

        The default writes the files, and lets a shell set the limits: the command that it returns has no
        setup. A provider whose `exec` carries out setups, which saves round trips, returns `command`.
        """
        for file in command.setup.files if command.setup else ():
            await self.write_file(sandbox_id, file.path, file.content, mode=file.mode)
        return _exec_files.limited_by_shell(command)

    @abstractmethod
    def list(self, tags: Mapping[str, str]) -> AsyncIterator[SandboxInfo]:
        """Iterate over the sandboxes that carry all of `tags`, whichever process made them."""

    @abstractmethod
    async def delete(self, sandbox_id: str) -> None:
        """End a sandbox and remove everything of it. Idempotent: an unknown id is no error."""

    async def get(self, sandbox_id: str) -> SandboxInfo:
        """Describe one sandbox. Raises SandboxNotFoundError when there is none."""
        async for info in self.list({}):
            if info.id == sandbox_id:
                return info
        raise self._no_sandbox(sandbox_id)

    def _no_sandbox(self, sandbox_id: str) -> SandboxNotFoundError:
        return SandboxNotFoundError(
            f"no sandbox {sandbox_id!r}; it may have ended",
            provider=self.name,
            sandbox_id=sandbox_id,
        )

    async def ready(self, sandbox_id: str) -> bool:
        """Return whether an idle sandbox is alive, as far as a quick check can tell. It is called for
        every sandbox that is taken from a pool, so avoid slow vendor calls."""
        try:
            return (await self.get(sandbox_id)).state is SandboxState.RUNNING
        except SandboxNotFoundError:
            return False

    async def workdir(self, sandbox_id: str) -> str:
        """Return the folder where commands start: `spec.workdir`, or the provider's default for None."""
        return await _exec_files.workdir(self, sandbox_id)

    async def read_file(self, sandbox_id: str, path: str, *, max_bytes: int) -> bytes:
        """Read a whole regular file, following links.

        Raises SandboxFileNotFoundError, or SandboxFileError for a directory, a special file,
        no permission, or more than `max_bytes`.
        """
        return await _exec_files.read_file(self, sandbox_id, path, max_bytes)

    async def read_pieces(
        self, sandbox_id: str, path: str, *, max_bytes: int
    ) -> AsyncGenerator[bytes, None]:
        """Yield what `read_file` returns, no faster than it is taken."""
        yield await self.read_file(sandbox_id, path, max_bytes=max_bytes)

    async def write_file(
        self, sandbox_id: str, path: str, data: bytes, *, mode: int | None
    ) -> None:
        """Write a file atomically, making parent folders. With `mode` None, an existing file keeps its
        mode, and a new one gets 0o644."""
        await _exec_files.write_file(self, sandbox_id, path, data, mode)

    async def put_archive(self, sandbox_id: str, path: str, tar: AsyncIterable[bytes]) -> None:
        """Unpack a tar stream into the folder `path`, which is created with its parents."""
        await _exec_files.put_archive(self, sandbox_id, path, tar)

    def get_archive(self, sandbox_id: str, path: str) -> AsyncGenerator[bytes, None]:
        """Stream a tar of `path`. A folder's contents are named relative to it; a file is the only
        member, under its own name. Raises SandboxFileNotFoundError."""
        return _exec_files.get_archive(self, sandbox_id, path)

    async def list_dir(self, sandbox_id: str, path: str) -> builtins.list[FileInfo]:
        """List a folder, sorted by path; each `FileInfo.path` is absolute.

        Raises SandboxFileError, without reading further, past 50,000 entries or 8 MiB of metadata.
        """
        return await _exec_files.list_dir(self, sandbox_id, path)

    async def stat(self, sandbox_id: str, path: str) -> FileInfo:
        """Describe one path without following a final link."""
        return await _exec_files.stat(self, sandbox_id, path)

    async def remove(self, sandbox_id: str, path: str, *, recursive: bool) -> None:
        """Remove a file, a link, an empty folder, or with `recursive` a tree."""
        await _exec_files.remove(self, sandbox_id, path, recursive)

    async def renew(self, sandbox_id: str, lifetime: float) -> None:
        """Set the sandbox's remaining lifetime (s). The default raises ConfigurationError."""
        raise ConfigurationError(f"provider {self.name!r} cannot renew a sandbox's lifetime")

    async def logs(self, sandbox_id: str) -> bytes:
        """Return the newest output of the sandbox's main command, at least its last 1 MiB."""
        raise ConfigurationError(f"provider {self.name!r} keeps no logs")

    async def wait(self, sandbox_id: str) -> int:
        """Wait for the main command to end and return its exit status.

        Raises SandboxTerminatedError or SandboxNotFoundError when the sandbox ends first.
        """
        raise ConfigurationError(f"provider {self.name!r} cannot wait for a main command")

    async def usage(self, sandbox_id: str) -> Usage | None:
        """Return what the sandbox has used; None, the default, if there is no trusted source.

        Processes of the sandbox must not be able to forge a figure; a forgeable figure is None.
        `starved_seconds` therefore needs exact `processor_seconds`, including children that no
        process waited for, because processes also wait for others of their own sandbox.
        Raises `SandboxNotFoundError`, `SandboxTerminatedError`, `ProviderUnavailableError`.
        """
        return None

    async def metered(self, sandbox_id: str, *, last: bool = False) -> Usage | None:
        """Return what the sandbox has used since its creation, for the ledger; the default is `usage`.

        Unlike `usage` it includes what was used before a reset, and the agent. It is called at intervals,
        and with `last` once more just before the deletion: then leave out what would take long, such as
        `memory_bytes`. Raises `SandboxNotFoundError` or `SandboxTerminatedError` once the sandbox has ended.
        """
        return await self.usage(sandbox_id)

    async def start_interpreter(self, sandbox_id: str, interpreter: Interpreter) -> None:
        """Start the interpreter that `run_python` forks, before anything else runs in the sandbox.

        Raises `CommandStartError` if the program does not exist or is no Python that can be forked,
        and `ConfigurationError` if a module cannot be imported.
        """
        raise ConfigurationError(
            f"provider {self.name!r} has no interpreter: run [{interpreter.program!r}, '-I', "
            "'-c', code] with exec()"
        )

    async def run_python(
        self, sandbox_id: str, code: str, command: Command, output: Output
    ) -> Exit:
        """Run code in a fork of the sandbox's interpreter, as `exec` runs `python -I -c code`.

        `command.argv` is `sys.argv`. At most one such job runs in a sandbox at a time. Returns and
        raises what `exec` does. Raises `CommandStartError` with errno EBUSY while another job runs,
        and `SandboxTerminatedError` with `by_command` when the job has ended the interpreter.
        """
        raise ConfigurationError(f"provider {self.name!r} has no interpreter")

    async def reset(self, sandbox_id: str) -> None:
        """Restore the sandbox to its state at the first call, and verify the result.

        The first call, before any command, only records the state. Each later call ends every
        process, empties every writable place, removes what outlives processes, and switches commands
        to another user if the sandbox has several. The interpreter keeps running.
        Raises `SandboxNotCleanError`, naming what is left; the sandbox must then be deleted.
        """
        raise ConfigurationError(f"provider {self.name!r} cannot reset a sandbox")

    async def exec_each(
        self, sandbox_id: str, command: Command, series: CommandSeries
    ) -> "builtins.list[ProcessResult]":
        """Run a command once for each input, with a reset between two runs, and return the results in order.

        Only for a sandbox that was reset. The call ends without an error before the first run that exceeds
        a limit of the series, so there may be fewer results than inputs. After the last run there is no
        reset. Cancelled: no process of the command is left. Raises what `exec` and `reset` do, and
        `AgentTooOldError`.
        """
        raise ConfigurationError(f"provider {self.name!r} cannot run a command for several inputs")

    async def check_ports(self, sandbox_id: str) -> None:
        """Return if `connect` and `listen` are possible; otherwise raise ConfigurationError."""
        raise ConfigurationError(f"provider {self.name!r} cannot reach a sandbox's ports")

    async def connect(self, sandbox_id: str, port: int) -> ByteStream:
        """Connect to a port of the sandbox's loopback, 127.0.0.1, from inside the sandbox.

        The stream has flow control: one that nobody reads holds up no other call. `send_eof` ends one
        direction. `aclose` before both directions have ended resets the connection. `receive` and
        `send` raise BrokenResourceError if the program inside resets it, and SandboxError if the
        sandbox ended or the connection to it broke.
        Raises `PortError` if nothing listens on the port, and `PortLimitError`.
        """
        await self.check_ports(sandbox_id)
        raise NotImplementedError

    async def listen(self, sandbox_id: str, port: int) -> PortListener:
        """Listen on a port of the sandbox's loopback as its user; port 0 takes a free one.

        Raises `PortError` if the port is taken.
        """
        await self.check_ports(sandbox_id)
        raise NotImplementedError

    async def open_link(self, sandbox_id: str) -> ByteStream:
        """Open another byte stream to the sandbox's agent, as agent/PROTOCOL.md describes it.

        `sandboxkit serve` passes its bytes on to a client. Raises SandboxNotFoundError, and
        ConfigurationError if this backend's sandboxes have no agent.
        """
        raise ConfigurationError(
            f"provider {self.name!r} has no agent in its sandboxes, so a service cannot lend them",
            provider=self.name,
        )

    async def why_ended(self, sandbox_id: str) -> SandboxError:
        """Return the error for calls of a sandbox that has ended: SandboxTerminatedError if the cause is
        known, else SandboxNotFoundError."""
        return self._no_sandbox(sandbox_id)

    async def public_url(self, sandbox_id: str, port: int) -> PublicUrl:
        """Return the vendor's URL for a port that was in `spec.public_ports` at the creation.

        Raises ConfigurationError for any other port, and if the backend has no public addresses.
        """
        raise ConfigurationError(
            f"provider {self.name!r} gives sandboxes no public addresses; sandbox.expose(port) forwards a "
            "port of this machine to it",
            provider=self.name,
        )

    def check_snapshot(self, spec: SandboxSpec, kind: SnapshotKind) -> None:
        """Raise ConfigurationError if a sandbox with these options supports no snapshots of `kind`, or
        cannot start from its `spec.snapshot`.

        Called before any I/O. The core never substitutes one kind for another. A provider with
        snapshots overrides this method and the three below.
        """
        raise ConfigurationError(
            f"provider {self.name!r} has no snapshots: use provider='local' or 'docker', or set the sandbox "
            "up anew"
        )

    async def confirm_snapshots(self) -> None:
        """Raise ConfigurationError if the backend itself, over the network, shows that it supports none.

        Called before long work whose result is to be a snapshot. A provider needs it only if
        `check_snapshot` cannot know this.
        """

    async def take_snapshot(
        self,
        sandbox_id: str,
        *,
        kind: SnapshotKind,
        name: str | None,
        tags: Mapping[str, str],
        expires: float,
    ) -> SnapshotInfo:
        """Store a running sandbox's files, so that `create` can start other sandboxes from them.

        Kept: files with modes, owners, times, extended attributes, hard links, holes, and deletions of
        files of the image. A backend documents which holes, extended attributes and fractions of a second
        it cannot keep. Kind "files" keeps nothing else: no process, no socket, no variable or secret, no
        tag of sandboxkit itself, nothing of the agent. Commands are paused meanwhile. `expires` (seconds
        since the epoch), `name` and `tags`, with which `age` counts, are stored with the snapshot.
        Raises `CapacityError`, with figures, if it does not fit; `ConfigurationError` for what cannot
        be kept. Failed or cancelled: nothing is left, or something that `list_snapshots` shows.
        """
        raise NotImplementedError

    async def list_snapshots(self, tags: Mapping[str, str]) -> AsyncIterator[SnapshotInfo]:
        """Iterate over the snapshots that carry all of `tags`, expired ones included."""
        return
        yield

    async def mark_snapshot_used(self, snapshot_id: str) -> None:
        """Count a snapshot as used now, where the backend removes those that were not used for long.

        Called for an image that a build found. Raises SnapshotNotFoundError if it has just been removed.
        """

    async def delete_snapshot(self, snapshot_id: str) -> None:
        """Remove a snapshot. Idempotent. Raises SnapshotInUseError while a sandbox runs from it."""

    def check_pause(self) -> None:
        """Raise ConfigurationError, before any I/O, if this backend cannot pause sandboxes.

        A provider that can overrides this method and the two below.
        """
        raise ConfigurationError(
            f"provider {self.name!r} cannot pause a sandbox: use provider='local', 'docker' or 'e2b', or "
            "stop the sandbox and set it up anew",
            provider=self.name,
        )

    async def pause(self, sandbox_id: str) -> None:
        """Stop all programs of the sandbox until `resume`, and keep them, their memory and all files.

        Returned: no program runs. Commands in flight end after `resume` as if nothing had happened, and
        can still be killed where the backend's agent runs on. `exec` and file calls raise
        `SandboxPausedError`, whichever process makes them. The sandbox still ends with its owner and,
        unless the backend stops that clock, its lifetime. Idempotent.
        Failed: the programs run.
        """
        raise NotImplementedError

    async def resume(self, sandbox_id: str) -> None:
        """Let the programs of a paused sandbox go on. Idempotent."""
        raise NotImplementedError

    async def remove_unused_datasets(self, *, dry_run: bool = False) -> builtins.list[str]:
        """Remove the stored copies of datasets that no sandbox or process uses; return their digests.

        With `dry_run` nothing is removed. A provider without `mounts` has none.
        """
        return []

    async def list_volumes(self) -> builtins.list[str]:
        """Return the names of the volumes that exist, sorted. A provider without volumes has none."""
        return []

    async def remove_volume(self, name: str) -> None:
        """Remove a volume and all its content.

        Raises VolumeError if there is none of this name, or if a sandbox mounts it.
        """
        raise VolumeError(f"provider {self.name!r} has no volume {name!r}", provider=self.name)

    def waiting(self) -> builtins.list[str]:
        """Return one line of text for each start known to wait at the backend; does no I/O."""
        return []

    async def diagnose(self) -> Diagnosis:
        """Return whether this backend works on this machine, without creating a sandbox."""
        return Diagnosis(available=True, isolation="unknown", detail="")

    async def aclose(self) -> None:
        """Release connections. Sandboxes that are not detached may end with them."""

"""The contract between sandboxkit and a sandbox backend: all that a provider author needs.

A provider is two classes: a `Provider`, which makes, finds and lists sandboxes, and a `Box` for one sandbox.
Required are `create`, `box` and `list`, and a box's `exec` and `delete`. The other methods have defaults, many of
them built on `exec`, which a provider may override. All methods run on sandboxkit's background event loop.
`sandboxkit.testing.ProviderConformance` checks the contract.

Providers implement no timeouts: the core cancels `exec`. They do not retry, do not track what they
created, and raise only errors of `sandboxkit.errors`. Here is what they share:

- `close_in_forks` takes each connection whose end tells the backend that this process is gone; otherwise a forked
  child keeps it open.
- `state_folder` returns the folder for state that a user's processes share about local sandboxes. `PathLock` keeps them
  apart there, `remove_unlocked` removes files of killed ones, and `FolderStore` has folders with content.
- `DatasetStore` has the snapshots that `spec.mounts` names; `split_mounts` tells them from volumes.
- `age` and `is_expired` judge a backend's SandboxInfo or SnapshotInfo by clocks that no jump makes older.
- `owner` and `owner_here` name this process, and `is_alive` tells whether one of that name lives. `start_time` tells two
  processes with one pid apart.
"""

import builtins
import functools
import inspect
from abc import ABC, abstractmethod
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Callable,
    Mapping,
)
from contextlib import AbstractAsyncContextManager, aclosing
from typing import Any, ClassVar, NoReturn

from anyio.abc import ByteStream

from sandboxkit._calls import _exec_files
from sandboxkit._life._folder_store import FolderStore
from sandboxkit._life._forks import close_in_forks
from sandboxkit._life._locks import PathLock, remove_unlocked
from sandboxkit._life._loop import no_thread
from sandboxkit._life._owners import age, is_alive, is_expired, owner, owner_here, start_time
from sandboxkit._life._state_folder import state_folder
from sandboxkit.datasets import DatasetStore, split_mounts, volume_of
from sandboxkit.errors import ConfigurationError, SandboxError, SandboxNotFoundError, VolumeError
from sandboxkit.types import (
    Command,
    CommandSeries,
    Diagnosis,
    Dockerfile,
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
    SnapshotRequest,
    StreamName,
    Usage,
)

__all__ = [
    "Box",
    "DatasetStore",
    "FirstCommand",
    "FolderStore",
    "Output",
    "PathLock",
    "PortListener",
    "Provider",
    "StreamName",
    "age",
    "close_in_forks",
    "is_alive",
    "is_expired",
    "no_sandbox",
    "no_thread",
    "owner",
    "owner_here",
    "remove_unlocked",
    "split_mounts",
    "start_time",
    "state_folder",
    "volume_of",
]


class FirstCommand:
    """A command that a provider may send along with the start of its sandbox.

    It is sent at most once: the provider claims it before it can reach the sandbox, and the core
    withdraws it when its caller gives up. Both run on the background loop.
    """

    def __init__(self, command: Command) -> None:
        self.command = command
        self.sent = False
        """Whether the command may have reached the sandbox."""
        self._withdrawn = False

    def claim(self) -> bool:
        """Record that the command is about to be sent; return False if it must not be sent."""
        self.sent = not self._withdrawn
        return self.sent

    def refuted(self) -> None:
        """Record proof that the command was not started and never will be; it may be claimed again."""
        self.sent = False

    def withdraw(self) -> bool:
        """Forbid sending the command; return False if it may have been sent already."""
        self._withdrawn = True
        return not self.sent


def no_sandbox(sandbox_id: str) -> SandboxNotFoundError:
    """Return the error for a sandbox that has ended, or never was."""
    return SandboxNotFoundError(f"no sandbox {sandbox_id!r}; it may have ended")


class PortListener(ABC):
    """A port of a sandbox's loopback on which the provider listens, until it is closed."""

    def __init__(self, port: int) -> None:
        self.port = port

    @abstractmethod
    async def accept(self) -> ByteStream:
        """Wait for a connection; several tasks may wait at once, which takes connections faster.

        The stream is as `Box.connect` describes it. Raises ClosedResourceError once the listener
        is closed, and SandboxError if the sandbox ended or the connection to it broke.
        """

    @abstractmethod
    async def aclose(self) -> None:
        """Stop listening. Accepted connections stay open. Idempotent."""


class Box(ABC):
    """One sandbox of a provider, and what can be done with it. Implement `exec` and `delete`; the rest have defaults.

    Errors that a method raises need not say which provider and which sandbox they concern.
    """

    def __init__(self, provider: "Provider", sandbox_id: str) -> None:
        self.provider, self.id = provider, sandbox_id

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        _complete_errors(cls, _of_box)

    @abstractmethod
    async def exec(self, command: Command, output: Output) -> Exit:
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

    async def set_up(self, command: Command) -> Command:
        """Return the command that `exec` gets for one that has a setup.

        The default writes the files, and lets a shell set the limits: the command that it returns has no
        setup. A provider whose `exec` carries out setups, which saves round trips, returns `command`.
        """
        for file in command.setup.files if command.setup else ():
            await self.write_file(file.path, file.content, mode=file.mode)
        return _exec_files.limited_by_shell(command)

    @abstractmethod
    async def delete(self) -> None:
        """End a sandbox and remove everything of it. Idempotent: an unknown id is no error."""

    async def info(self) -> SandboxInfo:
        """Describe the sandbox. Raises SandboxNotFoundError when there is none."""
        async for info in self.provider.list({}):
            if info.id == self.id:
                return info
        raise no_sandbox(self.id)

    async def ready(self) -> bool:
        """Return whether an idle sandbox is alive, as far as a quick check can tell. It is called for
        every sandbox that is taken from a pool, so avoid slow vendor calls."""
        try:
            return (await self.info()).state is SandboxState.RUNNING
        except SandboxNotFoundError:
            return False

    async def workdir(self) -> str:
        """Return the folder where commands start: `spec.workdir`, or for None the image's or the provider's default."""
        return await _exec_files.workdir(self)

    async def read_file(self, path: str, *, max_bytes: int) -> bytes:
        """Read a whole regular file, following links.

        Raises SandboxFileNotFoundError, or SandboxFileError for a directory, a special file,
        no permission, or more than `max_bytes`.
        """
        return await _exec_files.read_file(self, path, max_bytes)

    async def read_pieces(self, path: str, *, max_bytes: int) -> AsyncGenerator[bytes, None]:
        """Yield what `read_file` returns, no faster than it is taken."""
        yield await self.read_file(path, max_bytes=max_bytes)

    async def write_file(self, path: str, data: bytes, *, mode: int | None) -> None:
        """Write a file atomically, making parent folders. With `mode` None, an existing file keeps its
        mode, and a new one gets 0o644."""
        await _exec_files.write_file(self, path, data, mode)

    async def put_archive(self, path: str, tar: AsyncIterable[bytes]) -> None:
        """Unpack a tar stream into the folder `path`, which is created with its parents."""
        await _exec_files.put_archive(self, path, tar)

    async def get_archive(self, path: str) -> AsyncGenerator[bytes, None]:
        """Stream a tar of `path`. A folder's contents are named relative to it; a file is the only
        member, under its own name. Raises SandboxFileNotFoundError."""
        async with aclosing(_exec_files.get_archive(self, path)) as archive:
            async for piece in archive:
                yield piece

    async def list_dir(self, path: str) -> builtins.list[FileInfo]:
        """List a folder, sorted by path; each `FileInfo.path` is absolute.

        Raises SandboxFileError, without reading further, past 50,000 entries or 8 MiB of metadata.
        """
        return await _exec_files.list_dir(self, path)

    async def stat(self, path: str) -> FileInfo:
        """Describe one path without following a final link."""
        return await _exec_files.stat(self, path)

    async def remove(self, path: str, *, recursive: bool) -> None:
        """Remove a file, a link, an empty folder, or with `recursive` a tree."""
        await _exec_files.remove(self, path, recursive)

    async def renew(self, lifetime: float) -> None:
        """Set the sandbox's remaining lifetime (s). The default raises ConfigurationError."""
        raise ConfigurationError(
            f"provider {self.provider.name!r} cannot renew a sandbox's lifetime"
        )

    async def logs(self) -> bytes:
        """Return the newest output of the sandbox's main command, at least its last 1 MiB."""
        raise ConfigurationError(f"provider {self.provider.name!r} keeps no logs")

    async def wait(self) -> int:
        """Wait for the main command to end and return its exit status.

        Raises SandboxTerminatedError or SandboxNotFoundError when the sandbox ends first.
        """
        raise ConfigurationError(f"provider {self.provider.name!r} cannot wait for a main command")

    async def usage(self) -> Usage | None:
        """Return what the sandbox has used; None, the default, if there is no trusted source.

        Processes of the sandbox must not be able to forge a figure; a forgeable figure is None.
        `starved_seconds` therefore needs exact `processor_seconds`, including children that no
        process waited for, because processes also wait for others of their own sandbox.
        Raises `SandboxNotFoundError`, `SandboxTerminatedError`, `ProviderUnavailableError`.
        """
        return None

    async def metered(self, *, last: bool = False) -> Usage | None:
        """Return what the sandbox has used since its creation, for the ledger; the default is `usage`.

        Unlike `usage` it includes what was used before a reset, and the agent. It is called at intervals,
        and with `last` once more just before the deletion: then leave out what would take long, such as
        `memory_bytes`. Raises `SandboxNotFoundError` or `SandboxTerminatedError` once the sandbox has ended.
        """
        return await self.usage()

    async def start_interpreter(self, interpreter: Interpreter) -> None:
        """Start the interpreter that `run_python` forks, before anything else runs in the sandbox.

        Raises `CommandStartError` if the program does not exist or is no Python that can be forked,
        and `ConfigurationError` if a module cannot be imported.
        """
        raise ConfigurationError(
            f"provider {self.provider.name!r} has no interpreter: run [{interpreter.program!r}, '-I', "
            "'-c', code] with exec()"
        )

    async def run_python(self, code: str, command: Command, output: Output) -> Exit:
        """Run code in a fork of the sandbox's interpreter, as `exec` runs `python -I -c code`.

        `command.argv` is `sys.argv`. At most one such job runs in a sandbox at a time. Returns and
        raises what `exec` does. Raises `CommandStartError` with errno EBUSY while another job runs,
        and `SandboxTerminatedError` with `by_command` when the job has ended the interpreter.
        """
        raise ConfigurationError(f"provider {self.provider.name!r} has no interpreter")

    async def reset(self) -> None:
        """Restore the sandbox to its state at the first call, and verify the result.

        The first call, before any command, only records the state. Each later call ends every
        process, empties every writable place, removes what outlives processes, and switches commands
        to another user if the sandbox has several. The interpreter keeps running.
        Raises `SandboxNotCleanError`, naming what is left; the sandbox must then be deleted.
        """
        raise ConfigurationError(f"provider {self.provider.name!r} cannot reset a sandbox")

    async def exec_each(
        self, command: Command, series: CommandSeries
    ) -> "builtins.list[ProcessResult]":
        """Run a command once for each input, with a reset between two runs, and return the results in order.

        Only for a sandbox that was reset. The call ends without an error before the first run that exceeds
        a limit of the series, so there may be fewer results than inputs. After the last run there is no
        reset. Cancelled: no process of the command is left. Raises what `exec` and `reset` do, and
        `AgentTooOldError`.
        """
        raise ConfigurationError(
            f"provider {self.provider.name!r} cannot run a command for several inputs"
        )

    async def check_ports(self) -> None:
        """Return if `connect` and `listen` are possible; otherwise raise ConfigurationError."""
        raise ConfigurationError(f"provider {self.provider.name!r} cannot reach a sandbox's ports")

    async def connect(self, port: int) -> ByteStream:
        """Connect to a port of the sandbox's loopback, 127.0.0.1, from inside the sandbox.

        The stream has flow control: one that nobody reads holds up no other call. `send_eof` ends one
        direction. `aclose` before both directions have ended resets the connection. `receive` and
        `send` raise BrokenResourceError if the program inside resets it, and SandboxError if the
        sandbox ended or the connection to it broke.
        Raises `PortError` if nothing listens on the port, and `PortLimitError`.
        """
        await self.check_ports()
        raise NotImplementedError

    async def listen(self, port: int) -> PortListener:
        """Listen on a port of the sandbox's loopback as its user; port 0 takes a free one.

        Raises `PortError` if the port is taken.
        """
        await self.check_ports()
        raise NotImplementedError

    async def open_link(self) -> ByteStream:
        """Open another byte stream to the sandbox's agent, as agent/PROTOCOL.md describes it.

        `sandboxkit serve` passes its bytes on to a client. Raises SandboxNotFoundError, and
        ConfigurationError if this backend's sandboxes have no agent.
        """
        raise ConfigurationError(
            f"provider {self.provider.name!r} has no agent in its sandboxes, so a service cannot lend them"
        )

    async def why_ended(self) -> SandboxError:
        """Return the error for calls of a sandbox that has ended: SandboxTerminatedError if the cause is
        known, else SandboxNotFoundError."""
        return no_sandbox(self.id)

    async def public_url(self, port: int) -> PublicUrl:
        """Return the vendor's URL for a port that was in `spec.public_ports` at the creation.

        Raises ConfigurationError for any other port, and if the backend has no public addresses.
        """
        raise ConfigurationError(
            f"provider {self.provider.name!r} gives sandboxes no public addresses; sandbox.expose(port) forwards a "
            "port of this machine to it"
        )

    async def take_snapshot(self, request: SnapshotRequest) -> SnapshotInfo:
        """Store a running sandbox's files, so that `create` can start other sandboxes from them.

        Kept: files with modes, owners, times, extended attributes, hard links, holes, and deletions of
        files of the image. A backend documents which holes, extended attributes and fractions of a second
        it cannot keep. Kind "files" keeps nothing else: no process, no socket, no variable or secret, no
        tag of sandboxkit itself, nothing of the agent. Commands are paused meanwhile. The request's name, tags,
        with which `age` counts, and expiry are stored with the snapshot.
        Raises `CapacityError`, with figures, if it does not fit; `ConfigurationError` for what cannot
        be kept. Failed or cancelled: nothing is left, or something that `list_snapshots` shows.
        """
        raise NotImplementedError

    async def pause(self) -> None:
        """Stop all programs of the sandbox until `resume`, and keep them, their memory and all files.

        Returned: no program runs. Commands in flight end after `resume` as if nothing had happened, and
        can still be killed where the backend's agent runs on. `exec` and file calls raise
        `SandboxPausedError`, whichever process makes them. The sandbox still ends with its owner and,
        unless the backend stops that clock, its lifetime. Idempotent.
        Failed: the programs run.
        """
        raise NotImplementedError

    async def resume(self) -> None:
        """Let the programs of a paused sandbox go on. Idempotent."""
        raise NotImplementedError


class Provider(ABC):
    """One backend. Implement the three abstract methods; the rest have defaults built on them.

    Errors that a method of a subclass raises need not say which provider and which sandbox they concern.
    """

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        _complete_errors(cls, _of_provider)

    def completed(self, error: SandboxError, sandbox_id: str | None) -> SandboxError:
        """Return the error of a method for its caller, which says which provider and which sandbox it was."""
        error.provider = error.provider or getattr(self, "name", None)
        error.sandbox_id = error.sandbox_id or sandbox_id
        return error

    name: ClassVar[str]
    """The entry point's name, such as "docker"."""

    box_type: ClassVar[type[Box]] = Box  # type: ignore[type-abstract]  # no box is made of it
    """The class of its boxes, whose methods tell which options and calls there are besides the defaults."""

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
    async def create(self, spec: SandboxSpec, first: FirstCommand | None = None) -> Box:
        """Start a sandbox and return it; its id is a flat string that another process can use.

        Returned: once commands can run. `spec.workdir` exists. The core, not the provider,
        writes `spec.files`.
        The spec's tags are stored with the sandbox, all of them, as the backend's own labels.
        Raised: `ImageNotFoundError`, `CapacityError`, `SandboxStartError`,
        `ProviderUnavailableError`, `AuthenticationError`.
        Failed or cancelled: nothing of the sandbox exists when the call returns.
        Not detached: the sandbox ends soon after this process does, if the backend can.
        Always: the sandbox ends by itself after `spec.lifetime` seconds, unless that is None.
        With `first`, the provider may send that command along with the start, which saves a round trip, but
        only if `first.claim()` returns True. `Box.exec` is then called with the same `first.command` object, and
        returns how it ended. If the start fails, call `first.refuted()` once it is proven that the command was not
        started; otherwise the core raises OutcomeUnknownError. If the call fails or is cancelled, the sandbox and
        the command have ended when it returns.
        """

    @abstractmethod
    def box(self, sandbox_id: str) -> Box:
        """Return the sandbox of this id, whichever process made it, without asking the backend for it.

        The object is the same as long as one is held, so that all who use the sandbox share its connection.
        """

    @classmethod
    def has(cls, name: str) -> bool:
        """Return whether its boxes do more than the default for the method of this name, such as "listen"."""
        return getattr(cls.box_type, name) is not getattr(Box, name)

    @abstractmethod
    def list(self, tags: Mapping[str, str]) -> AsyncIterator[SandboxInfo]:
        """Iterate over the sandboxes that carry all of `tags`, whichever process made them."""

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

    def built_image(
        self, file: Dockerfile, network: str, tell: Callable[[str], None]
    ) -> AbstractAsyncContextManager[str]:
        """Build a Dockerfile; the context is the value of the option `image` for its result, of which a snapshot is taken.

        The builder has the network "none" or "internet". `tell` gets its lines. What the snapshot does not
        need is gone afterwards. Raises ImageBuildError, and ConfigurationError for what cannot be built.
        """
        raise ConfigurationError(
            f"provider {self.name!r} builds no Dockerfiles: build and push {file.path!r} with `docker build` and "
            "`docker push`, and use Image(name)",
            provider=self.name,
        )

    def check_pause(self) -> None:
        """Raise ConfigurationError, before any I/O, if this backend cannot pause sandboxes.

        A provider that can overrides this method and the two below.
        """
        raise ConfigurationError(
            f"provider {self.name!r} cannot pause a sandbox: use provider='local', 'docker' or 'e2b', or "
            "stop the sandbox and set it up anew",
            provider=self.name,
        )

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


# Any: boxes and providers, and methods of any signature.
_Complete = Callable[[Any, SandboxError], SandboxError]


def _of_box(box: Box, error: SandboxError) -> SandboxError:
    return box.provider.completed(error, box.id)


def _of_provider(provider: Provider, error: SandboxError) -> SandboxError:
    return provider.completed(error, None)


def _complete_errors(cls: type[Any], complete: _Complete) -> None:
    """Have the public methods of a class, and its constructor, raise what `complete` makes of their errors."""
    for name, method in [*vars(cls).items()]:
        if inspect.isfunction(method) and (name == "__init__" or not name.startswith("_")):
            setattr(cls, name, _completing(method, complete))


def _completing(method: Callable[..., Any], complete: _Complete) -> Callable[..., Any]:
    def fail(error: SandboxError, owner: Any) -> NoReturn:
        completed = complete(owner, error)
        if completed is error:
            raise error
        raise completed from error

    async def call(self: Any, *args: Any, **options: Any) -> Any:
        try:
            return await method(self, *args, **options)
        except SandboxError as error:
            fail(error, self)

    async def items(self: Any, *args: Any, **options: Any) -> AsyncIterator[Any]:
        try:
            async with aclosing(method(self, *args, **options)) as found:
                async for item in found:
                    yield item
        except SandboxError as error:
            fail(error, self)

    def plain(self: Any, *args: Any, **options: Any) -> Any:
        try:
            return method(self, *args, **options)
        except SandboxError as error:  # from here, so that the traceback fits on a screen
            raise complete(self, error).with_traceback(None) from error.__cause__

    if inspect.isasyncgenfunction(method):
        return functools.wraps(method)(items)
    return functools.wraps(method)(call if inspect.iscoroutinefunction(method) else plain)


_complete_errors(Box, _of_box)
_complete_errors(Provider, _of_provider)

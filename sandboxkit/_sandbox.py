"""Sandbox: one isolated machine, started on first use."""

import asyncio
import builtins
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn, Self, TypeVar, Unpack

from sandboxkit import _ambient, _snapshot, _tags
from sandboxkit._calls import _arguments, _exec_files
from sandboxkit._calls._arguments import call_site, explained
from sandboxkit._calls._foreign_names import foreign_names
from sandboxkit._calls._streams import Stdin, command_input
from sandboxkit._life._work import start_detached, undone_if_interrupted
from sandboxkit._lifecycle import Lifecycle, SessionContext, State, pause_or_resume
from sandboxkit._operation import Operation, name_dropped
from sandboxkit._process import OUTPUT_LIMIT, CommandLimits, Process, checked_limits
from sandboxkit._snapshot import Snapshot
from sandboxkit.display import Displayable
from sandboxkit.display.signatures import spelled_out
from sandboxkit.errors import ConfigurationError, SandboxError, SandboxFileNotFoundError
from sandboxkit.options import SpecOptions
from sandboxkit.provider import Box, Provider
from sandboxkit.types import (
    Command,
    CommandSeries,
    CommandSetup,
    Exit,
    FileInfo,
    Network,
    Output,
    ProcessResult,
    PtySize,
    PublicUrl,
    SandboxInfo,
    SandboxSpec,
    SandboxState,
    SnapshotKind,
    Usage,
)

if TYPE_CHECKING:
    from sandboxkit.egress import Egress
    from sandboxkit.kernel import Kernel, KernelOptions
    from sandboxkit.terminal import Terminal
    from sandboxkit.transfers import Transfer
    from sandboxkit.tunnels import Exposed, Handler, PortConnection, Served

T = TypeVar("T")
_Run = Callable[[Box, Command, Output], Awaitable[Exit]]

MAX_READ = 256 * 1024 * 1024
MAX_DOWNLOAD = 1024 * 1024 * 1024
MAX_DOWNLOAD_FILES = 100_000


@explained
@foreign_names
class Sandbox(Displayable):
    """One isolated machine. Made by `Session.sandbox()` or `create()`; it starts on first use.

    Every call returns at once with an Operation: `.result()` blocks, `await` does not. As a
    context manager it starts on entry and stops on exit, unless it is detached.
    """

    # Any: a Session, whose module imports this one and sets it.
    _session: ClassVar[Callable[[str | Provider | None], Any]]

    def __new__(cls, *given: object, **options: object) -> Self:
        """Raise ConfigurationError for a direct call: sessions make sandboxes."""
        if not given or not isinstance(given[0], Provider):
            raise ConfigurationError(
                f"a {cls.__name__} is made by its session, as Session().sandbox(image=...), or by "
                "Sandbox.create(image=...); get a running one with Sandbox.from_id(id)"
            )
        return super().__new__(cls)

    def __init__(
        self,
        provider: Provider,
        spec: SandboxSpec,
        context: SessionContext,
        box: Box | None = None,
    ) -> None:
        self._provider = provider
        self._life = Lifecycle(provider, spec, context, box, made_at=call_site())
        self._reached_by_id = box is not None
        self._own: Any = None  # Any: see _session
        """The session that this sandbox closes when it is stopped."""
        if spec.egress is not None:
            from sandboxkit.egress import _control

            self._life.network = _control.NetworkControl(self._life)

    def __repr__(self) -> str:
        return f"<Sandbox {self._life.describe()} provider={self.provider_name}>"

    @property
    def id(self) -> str | None:
        """The id that any process can use in `from_id`; None before the start."""
        return self._life.id

    @property
    def provider_name(self) -> str:
        """The name of the backend, such as "docker"."""
        return self._provider.name

    @property
    def spec(self) -> SandboxSpec:
        """The options of the sandbox, with its present network; the defaults if it was reached by `from_id`."""
        return self._life.spec

    @property
    def queued(self) -> float | None:
        """How long (s) the start has waited for room without progress in the session; None if not queued.

        The count restarts whenever a sandbox of the session starts running or ends. Use it for a deadline
        that excludes queueing behind other sandboxes but still detects a stuck queue.
        """
        life = self._life
        since = max(life.since, life.context.moved)
        return time.monotonic() - since if life.state is State.QUEUED else None

    @staticmethod
    @spelled_out
    def create(
        *, provider: str | Provider | None = None, **options: Unpack[SpecOptions]
    ) -> "Sandbox":
        """Make a sandbox with a session of its own, which `stop()` closes, and with it what `fork` has made.

        The keywords are those of `Session.sandbox`. Many sandboxes are better made by one Session, for
        its caps and its pool.
        """
        session = Sandbox._session(provider)
        try:
            made: Sandbox = session.sandbox(**options)
        except BaseException:
            session.close()
            raise
        made._own = session
        return made

    @staticmethod
    def list(
        tags: _tags.Tags | None = None,
        state: SandboxState | None = None,
        *,
        provider: str | None = None,
    ) -> Operation[builtins.list[SandboxInfo]]:
        """List every sandbox that carries all of `tags`, whichever process made it.

        `state` limits the list to sandboxes in that state.
        """
        return _ambient.listed(_ambient.provider(provider), tags, state)

    @staticmethod
    def from_id(sandbox_id: str, *, provider: str | None = None) -> "Operation[Sandbox]":
        """Return a sandbox by its id, whichever process made it. Raises SandboxNotFoundError."""
        sandbox_id = _arguments.text("sandbox_id", sandbox_id)
        backend = _ambient.provider(provider)
        return Operation(Sandbox._reached(backend, SessionContext(), sandbox_id))

    def start(self) -> Operation[Self]:
        """Start the sandbox now rather than on first use, and return it."""

        async def run() -> Self:
            await self._life.started()
            return self

        return Operation(run(), lost=self._life.lost, of=self._life)

    def exec(
        self,
        argv: Sequence[str],
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        user: str | None = None,
        timeout: float | None = None,
        deadline: float | None = None,
        check: bool = False,
        stdin: _arguments.Content | bool | None = None,
        pty: PtySize | bool = False,
        output_limit: int | None = OUTPUT_LIMIT,
        setup: CommandSetup | None = None,
    ) -> Process:
        """Run a command and return at once. A non-zero exit is a result, not an error.

        `stdin` is the whole input, or True for a `Process.stdin` to write to. `pty` runs it on a
        terminal, with stdin open. `output_limit` is in bytes per stream, None for no limit. `timeout` (s)
        counts from the command's start; when it expires, the whole process tree is killed and the result
        raises CommandTimeoutError. With `check`, a non-zero exit raises CommandFailedError. Every other
        error is an infrastructure error. `setup` has files and resource limits of the command.

        `deadline` (s) counts from this call and covers the wait for room, the sandbox's start and the
        command. When it expires, the result raises NoRoomError if the sandbox still waits for room,
        otherwise ProviderUnavailableError; the command is killed. Give a `timeout` to limit the command.
        """
        self._life.refuse_ended()  # before a stdin exists that nobody would close
        size, place, who = _arguments.pty(pty), _arguments.cwd(cwd), _arguments.user(user)
        words, variables = _arguments.argv(argv), _arguments.env(env)
        live, items = command_input(stdin, open_=size is not None)
        command = Command(words, place, variables, who, items, size, _arguments.setup(setup))
        limits = checked_limits(timeout, deadline, check, output_limit)
        return self._process(words, command, lambda box, *given: box.exec(*given), limits, live)

    def exec_each(
        self,
        argv: Sequence[str],
        series: CommandSeries,
        *,
        env: Mapping[str, str] | None = None,
        setup: CommandSetup | None = None,
    ) -> Operation[builtins.list[ProcessResult]]:
        """Run a command once for each input of `series`, and reset the sandbox between two runs.

        Return the results of the first runs, in order. A run that exceeds a limit of `series` has none, nor
        have those after it: use `exec` for them. Only the files of `setup` are there in each run. Raises what
        `exec` raises, and ConfigurationError if the sandbox was not made with reuse="reset", or if another
        call or connection of it is open; calls during a series fail.
        """
        words, values, extra = _arguments.argv(argv), _arguments.env(env), _arguments.setup(setup)
        command, runs = (
            Command(words, env=values, setup=extra),
            _arguments.series(series, self.spec.reuse),
        )
        return self._call(lambda box: box.exec_each(command, runs))

    def run_python(
        self,
        code: str,
        *,
        args: Sequence[str] = (),
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        timeout: float | None = None,
        deadline: float | None = None,
        check: bool = False,
        stdin: _arguments.Content | bool | None = None,
        output_limit: int | None = OUTPUT_LIMIT,
    ) -> Process:
        """Run code in a fork of the sandbox's interpreter, whose modules are already imported.

        The sandbox needs the option `interpreter=`; otherwise this raises ConfigurationError. The
        result is that of `exec([program, "-I", "-c", code, *args])`, without Python's start-up time.
        """
        self._life.refuse_ended()
        interpreter = self.spec.interpreter
        if interpreter is None:
            raise ConfigurationError(
                "this sandbox has no interpreter to fork: make it with interpreter=Interpreter(), "
                "or use session.run_python(code)"
            )
        words = ("-c", *_arguments.arguments("args", args))
        live, items = command_input(stdin)
        command = Command(words, _arguments.cwd(cwd), _arguments.env(env), None, items)
        text = _arguments.code("code", code)
        return self._process(
            (interpreter.program, "-I", "-c", text, *words[1:]),
            command,
            lambda box, *given: box.run_python(text, *given),
            checked_limits(timeout, deadline, check, output_limit),
            live,
        )

    def terminal(
        self,
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        user: str | None = None,
        size: PtySize | None = None,
        output_limit: int = 1 << 20,
    ) -> "Terminal":
        """Open a persistent bash session on a PTY. State carries over between commands.

        It starts on first use. `output_limit` is in bytes per result.
        """
        from sandboxkit.terminal import Terminal

        self._life.refuse_ended()
        return Terminal(self, cwd=cwd, env=env, user=user, size=size, output_limit=output_limit)

    def python(self, **options: "Unpack[KernelOptions]") -> "Kernel":
        """Open a persistent Python kernel. State carries over between cells.

        It starts on first use. `sandboxkit.kernel.KernelOptions` lists the options.
        """
        from sandboxkit.kernel import Kernel

        self._life.refuse_ended()
        return Kernel(self, **options)

    def connect(self, port: int) -> "Operation[PortConnection]":
        """Connect to a port of the sandbox's loopback, with or without a network.

        Raises PortError if nothing listens there, PortLimitError, and ConfigurationError if the backend
        does not support it (AgentTooOldError if only this sandbox's agent does not).
        """
        from sandboxkit.tunnels import _connection

        return _connection.connect(self._life, port)

    def expose(self, port: int, *, host_port: int = 0) -> "Operation[Exposed]":
        """Make a port of the sandbox's loopback reachable at a port of this machine's loopback.

        Any process of this machine can then connect. `host_port` 0 takes a free port; a port in use raises
        OSError. Raises ConfigurationError if the backend does not support it.
        """
        from sandboxkit.tunnels import _exposed

        return _exposed.expose(self._life, port, host_port)

    def serve(self, port: int, to: "str | Handler") -> "Operation[Served]":
        """Listen on a port of the sandbox's loopback, and forward its connections to this process.

        `to` is an address that this process connects to, such as "127.0.0.1:9000", or an async function
        that is called with each `PortConnection` on the event loop that calls `serve`. Port 0 takes a free
        one. Raises PortError if the port is in use, ConfigurationError if the backend does not support it.
        """
        from sandboxkit.tunnels import _served

        return _served.serve(self._life, port, to)

    def public_url(self, port: int) -> Operation[PublicUrl]:
        """Return the vendor's URL for a port in `public_ports`, and who can reach it.

        Raises ConfigurationError for any other port.
        """
        number = _arguments.port("port", port)
        if not self._reached_by_id and number not in self.spec.public_ports:
            raise ConfigurationError(f"port {port} is not public: give public_ports=[{port}]")
        return self._call(lambda box: box.public_url(number))

    def set_network(self, network: "Network | Egress") -> Operation[None]:
        """Change which servers the sandbox may reach, and close its open connections.

        `network` is "none" or an `Egress`. Raises ConfigurationError for a sandbox with network="internet",
        and for one that was reached by its id.
        """
        from sandboxkit.egress import _control

        egress = _control.checked(network, self.spec, by_id=self._reached_by_id)
        control = self._life.network = self._life.network or _control.NetworkControl(self._life)
        return self._call(lambda _: control.change(egress))

    def read_file(self, path: str, *, max_bytes: int = MAX_READ) -> Operation[bytes]:
        """Read a whole file. Raises SandboxFileNotFoundError, or SandboxFileError past `max_bytes`."""
        most = _arguments.size("max_bytes", max_bytes)
        return self._file_call(
            "read_file", lambda box, place: box.read_file(place, max_bytes=most), path
        )

    def read_text(self, path: str, *, max_bytes: int = MAX_READ) -> Operation[str]:
        """Read a file as UTF-8 text. Raises what `read_file` raises, and UnicodeDecodeError."""
        most = _arguments.size("max_bytes", max_bytes)

        async def read(box: Box, place: str) -> str:
            return (await box.read_file(place, max_bytes=most)).decode()

        return self._file_call("read_text", read, path)

    def write_file(
        self, path: str, data: _arguments.Content, *, mode: int | None = None
    ) -> Operation[None]:
        """Write a file atomically, making its parent folders.

        With `mode` None an existing file keeps its mode and a new file gets 0o644.
        """
        (path, content), bits = _arguments.file(path, data), _arguments.mode(mode)

        return self._file_call(
            "write_file",
            lambda box, place: box.write_file(place, content, mode=bits),
            path,
            changes=True,
        )

    def upload(self, local: str | os.PathLike[str], remote: str) -> Operation[None]:
        """Copy a file to the path `remote`, or a folder's contents into the folder `remote`.

        Modes and links inside a folder are kept. Missing folders are created.
        """
        from sandboxkit.transfers import _calls  # tarfile costs a tenth of the whole import

        return _calls.upload(self._life, local, remote)

    def download(
        self,
        remote: str,
        local: str | os.PathLike[str],
        *,
        max_bytes: int = MAX_DOWNLOAD,
        max_files: int = MAX_DOWNLOAD_FILES,
    ) -> "Operation[Transfer]":
        """Copy a file to the path `local`, or a folder's contents into the folder `local`.

        The data is untrusted: links, special files and what the sandbox's user may not read are skipped and
        named in the result, and nothing is written outside `local`. Raises SandboxFileError past a limit, for paths over 64 folders
        or 2 KiB, and for files that change meanwhile; OSError if this machine cannot store it.
        """
        from sandboxkit.transfers import _calls

        return _calls.download(self._life, remote, local, max_bytes, max_files)

    def list_dir(self, path: str) -> Operation[builtins.list[FileInfo]]:
        """List a folder, sorted by path. Raises SandboxFileError for a very large folder."""
        return self._file_call("list_dir", lambda box, place: box.list_dir(place), path)

    def stat(self, path: str) -> Operation[FileInfo]:
        """Describe a path without following a final link. Raises SandboxFileNotFoundError."""
        return self._file_call("stat", lambda box, place: box.stat(place), path)

    def exists(self, path: str) -> Operation[bool]:
        """Return whether there is something at a path, without following a final link."""

        async def look(box: Box, place: str) -> bool:
            try:
                await box.stat(place)
            except SandboxFileNotFoundError:
                return False
            return True

        return self._file_call("exists", look, path)

    def mkdir(self, path: str) -> Operation[None]:
        """Make a folder and its parents, as far as they are missing."""

        async def make(box: Box, place: str) -> None:
            async def nothing() -> AsyncIterator[bytes]:
                yield bytes(1024)  # a tar without members

            await box.put_archive(place, nothing())

        return self._file_call("mkdir", make, path, changes=True)

    def rename(self, path: str, to: str) -> Operation[None]:
        """Move a file or folder to the path `to`, where a file is replaced; the sandbox needs the program mv.

        Raises SandboxFileNotFoundError, and SandboxFileError if `to` is a folder or cannot be made.
        """
        return self._file_call("rename", _exec_files.rename, path, to, changes=True)

    def remove(self, path: str, *, recursive: bool = False) -> Operation[None]:
        """Remove a file, a link or an empty folder; with `recursive` a whole tree."""
        deep = _arguments.flag("recursive", recursive)
        return self._file_call(
            "remove", lambda box, place: box.remove(place, recursive=deep), path, changes=True
        )

    def logs(self) -> Operation[bytes]:
        """Return the newest output of the sandbox's main command, stdout and stderr together."""
        return self._call(lambda box: box.logs())

    def status(self) -> Operation[SandboxInfo]:
        """Ask the backend for the sandbox's state. Raises SandboxNotFoundError once it is gone."""
        return self._call(lambda box: box.info())

    def usage(self) -> Operation[Usage | None]:
        """Return what the sandbox has used since its start; None if the backend cannot tell."""
        return self._call(lambda box: box.usage())

    def workdir(self) -> Operation[str]:
        """Return the folder where commands start: the option `workdir`, or the image's or the backend's default."""
        return self._call(lambda box: box.workdir())

    def wait(self) -> Operation[int]:
        """Wait for the main command to end and return its exit status."""
        return self._call(lambda box: box.wait())

    def renew(self, lifetime: float) -> Operation[None]:
        """Set the sandbox's remaining lifetime to `lifetime` seconds from now."""
        _arguments.positive("lifetime", lifetime, unit="seconds")

        async def renew(box: Box) -> None:
            self._life.renewed = float("-inf")  # a pool must not reuse it: its end is unknown
            await box.renew(lifetime)

        return self._call(renew)

    def snapshot(
        self,
        name: str | None = None,
        *,
        ttl: float = _snapshot.TTL,
        tags: _tags.Tags | None = None,
        kind: SnapshotKind = "files",
    ) -> Operation[Snapshot]:
        """Store the sandbox's files, for new sandboxes made with `session.sandbox(snapshot=...)`.

        Commands are paused meanwhile. `ttl` (s) is the snapshot's lifetime; `tags` are added to those of
        the sandbox. Raises ConfigurationError if the backend does not support snapshots of `kind`, and
        CapacityError if the snapshot does not fit.
        """
        return _snapshot.take(self._life, name, ttl, tags, kind)

    def fork(self, n: int) -> "Operation[builtins.list[Sandbox | SandboxError]]":
        """Start `n` sandboxes with this one's options, and its network and files as they are now, without its processes.

        Each entry is a started sandbox of this session, or the error of its start. Raises what `snapshot`
        raises. The temporary snapshot is deleted when the last of the sandboxes has stopped.
        """
        return _snapshot.fork(self._life, n, self._sibling, by_id=self._reached_by_id)

    def pause(self) -> Operation[None]:
        """Stop all programs until `resume()`; files, memory and processes are kept. Idempotent.

        Commands in flight and their `timeout` stand still; a `deadline` and the lifetime do not. Other calls
        raise SandboxPausedError. Raises ConfigurationError if the backend cannot pause sandboxes.
        """
        return pause_or_resume(self._life, paused=True)

    def resume(self) -> Operation[None]:
        """Let the programs of a paused sandbox go on, whichever process paused it. Idempotent."""
        return pause_or_resume(self._life, paused=False)

    def stop(self) -> Operation[None]:
        """Stop the sandbox and remove everything of it. Idempotent; a start in flight is undone.

        Cancelling this operation only stops waiting for it.
        """
        begin = self._life.stop if self._own is None else self._begin_own_end
        return start_detached(begin, ended=self._life.stopped or self.id is None)

    def __enter__(self) -> Self:
        with undone_if_interrupted(self.stop):
            return self.start().result()

    def __exit__(self, kind: type[BaseException] | None, *exc: object) -> None:
        if not self.spec.detach:
            name_dropped(lambda life: life is self._life, kind)
            self.stop().result()

    def __await__(self) -> NoReturn:
        """Raise ConfigurationError: there is nothing to wait for."""
        raise ConfigurationError(
            "a sandbox is made at once, without a start to wait for: leave out 'await', or write await sandbox.start()"
        )

    def __reduce__(self) -> NoReturn:
        raise TypeError(
            f"{self!r} cannot be pickled or copied: send sandbox.id, and call "
            f"Sandbox.from_id(id, provider={self.provider_name!r}) there"
        )

    async def __aenter__(self) -> Self:
        with undone_if_interrupted(self.stop):
            return await self.start()

    async def __aexit__(self, kind: type[BaseException] | None, *exc: object) -> None:
        if not self.spec.detach:
            name_dropped(lambda life: life is self._life, kind)
            await self.stop()

    @staticmethod
    async def _reached(provider: Provider, context: SessionContext, sandbox_id: str) -> "Sandbox":
        box = provider.box(sandbox_id)
        await box.info()
        return Sandbox(provider, SandboxSpec(), context, box)

    def _begin_own_end(self) -> asyncio.Task[None]:
        async def end() -> None:
            if stopping := self._life.stop():
                await asyncio.shield(stopping)
            await self._own.close()

        ending = asyncio.create_task(end())
        ending.add_done_callback(lambda task: task.cancelled() or task.exception())
        return ending

    def _sibling(self, spec: SandboxSpec) -> "tuple[Sandbox, Lifecycle]":
        made = Sandbox(self._provider, spec, self._life.context)
        return made, made._life

    def _file_call(
        self, name: str, work: Callable[..., Awaitable[T]], *paths: str, changes: bool = False
    ) -> Operation[T]:
        places = [_arguments.path(each, relative=True) for each in paths]
        self._life.refuse_ended()
        done = self._life.on_paths(work, *places, changes=changes)
        return Operation(done, of=self._life, title=f"{name}({', '.join(map(repr, places))})")

    def _call(self, work: Callable[[Box], Awaitable[T]]) -> Operation[T]:
        self._life.refuse_ended()
        return Operation(self._life.call(work), of=self._life)

    def _process(
        self,
        argv: tuple[str, ...],
        command: Command,
        run: _Run,
        limits: CommandLimits,
        live: Stdin | None,
    ) -> Process:
        async def ready() -> Callable[[Output], Awaitable[Exit]]:
            await self._life.turns.before_command(argv)
            network = self._life.network  # read once: a command sent with the start gets no proxy
            box = await self._life.started(command if network is None else None)
            sent = command if network is None else network.with_proxy(command)
            if sent.setup is not None:
                sent = await self._life.during(box, lambda box: box.set_up(sent))
            return lambda output: self._life.during(box, lambda box: run(box, sent, output))

        return Process(argv, ready, limits, live, self._life)

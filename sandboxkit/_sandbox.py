"""Sandbox: one isolated machine, started on first use."""

import builtins
import contextlib
import os
import posixpath
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Self, TypeVar, Unpack

from sandboxkit import _ambient, _arguments, _tags
from sandboxkit._life import Home, Life
from sandboxkit._operation import Operation
from sandboxkit._process import OUTPUT_LIMIT, Limits, Process
from sandboxkit._streams import Stdin
from sandboxkit._work import begun
from sandboxkit.display import Shown
from sandboxkit.errors import (
    ConfigurationError,
    SandboxFileError,
)
from sandboxkit.provider import Provider
from sandboxkit.types import (
    Command,
    Exit,
    FileInfo,
    FileType,
    Output,
    PtySize,
    SandboxInfo,
    SandboxSpec,
    SandboxState,
    StdinItem,
    Usage,
)

if TYPE_CHECKING:
    from sandboxkit._transfer import Transfer
    from sandboxkit.kernel import Kernel, KernelOptions
    from sandboxkit.terminal import Terminal

T = TypeVar("T")
_Run = Callable[[str, Output], Awaitable[Exit]]

MAX_READ = 256 * 1024 * 1024
MAX_DOWNLOAD = 1024 * 1024 * 1024
MAX_DOWNLOAD_FILES = 100_000


class Sandbox(Shown):
    """One isolated machine. Made by `Session.sandbox()`; it starts on first use.

    Every call returns at once with an Operation: `.result()` blocks, `await` does not. As a
    context manager it starts on entry and stops on exit, unless it is detached.
    """

    def __new__(cls, *given: object, **options: object) -> Self:
        """Raise ConfigurationError for one that is not made by a session."""
        if not given or not isinstance(given[0], Provider):
            raise ConfigurationError(
                f"a {cls.__name__} is made by its session: Session().sandbox(image=...); one that "
                "runs already is reached by Sandbox.from_id(id)"
            )
        return super().__new__(cls)

    def __init__(
        self,
        provider: Provider,
        spec: SandboxSpec,
        home: Home,
        sandbox_id: str | None = None,
    ) -> None:
        self._provider = provider
        self._life = Life(provider, spec, home, sandbox_id)

    def __repr__(self) -> str:
        return f"<Sandbox {self.id or '(not started)'} provider={self.provider_name}>"

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
        """The options it was made with; the defaults for one reached by `from_id`."""
        return self._life.spec

    @staticmethod
    def list(
        tags: _tags.Tags | None = None,
        state: SandboxState | None = None,
        *,
        provider: str | None = None,
    ) -> Operation[builtins.list[SandboxInfo]]:
        """List every sandbox that carries all of `tags`, whichever process made it."""
        return _ambient.listed(_ambient.provider(provider), tags, state)

    @staticmethod
    def from_id(sandbox_id: str, *, provider: str | None = None) -> "Operation[Sandbox]":
        """Reach a sandbox of another process. Raises SandboxNotFoundError."""
        sandbox_id = _arguments.text("sandbox_id", sandbox_id)
        backend = _ambient.provider(provider)

        async def run() -> Sandbox:
            await backend.get(sandbox_id)
            return Sandbox(backend, SandboxSpec(), Home(), sandbox_id)

        return Operation(run())

    def start(self) -> Operation[Self]:
        """Start it now rather than on first use."""

        async def run() -> Self:
            await self._life.started()
            return self

        return Operation(run(), lost=self._life.lost)

    def exec(
        self,
        argv: Sequence[str],
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        user: str | None = None,
        timeout: float | None = None,
        check: bool = False,
        stdin: _arguments.Content | bool | None = None,
        pty: PtySize | bool = False,
        output_limit: int | None = OUTPUT_LIMIT,
    ) -> Process:
        """Run a command and return at once. A non-zero exit is a result, not an error.

        `stdin` is the whole input, or True for a `Process.stdin` to write to. `pty` runs it on
        a terminal, with stdin open. `output_limit` is in bytes a stream, None for no limit.
        `timeout`, in seconds, counts from the command's start; past it the whole process tree
        is killed and the result raises CommandTimeoutError. With `check`, a non-zero exit
        raises CommandFailedError. Every other error is the infrastructure's.
        """
        self._refuse_stopped()
        size = _arguments.pty(pty)
        words, variables = _arguments.argv(argv), _arguments.env(env)
        live, items = _input(stdin, open_=size is not None)
        command = Command(words, _cwd(cwd), variables, _user(user), items, size)
        limits = _limits(timeout, check, output_limit)
        return self._process(
            words, lambda box, output: self._provider.exec(box, command, output), limits, live
        )

    def run_python(
        self,
        code: str,
        *,
        args: Sequence[str] = (),
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        timeout: float | None = None,
        check: bool = False,
        stdin: _arguments.Content | bool | None = None,
        output_limit: int | None = OUTPUT_LIMIT,
    ) -> Process:
        """Run code in a fork of the sandbox's interpreter, which has its modules imported already.

        It needs `interpreter=` among the sandbox's options. The result is that of
        `exec([program, "-I", "-c", code, *args])`, without Python's start; see there.
        """
        self._refuse_stopped()
        interpreter = self.spec.interpreter
        if interpreter is None:
            raise ConfigurationError(
                "this sandbox has no interpreter to fork: make it with interpreter=Interpreter(), "
                "or use session.run_python(code)"
            )
        words = ("-c", *_arguments.arguments("args", args))
        live, items = _input(stdin)
        command = Command(words, _cwd(cwd), _arguments.env(env), None, items)
        text = _arguments.code("code", code)
        return self._process(
            (interpreter.program, "-I", "-c", text, *words[1:]),
            lambda box, output: self._provider.run_python(box, text, command, output),
            _limits(timeout, check, output_limit),
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
        """Open a bash that lasts, on a terminal: what one command leaves, the next one finds.

        It starts on first use. `output_limit` is in bytes a result.
        """
        from sandboxkit.terminal import Terminal

        self._refuse_stopped()
        return Terminal(self, cwd=cwd, env=env, user=user, size=size, output_limit=output_limit)

    def python(self, **options: "Unpack[KernelOptions]") -> "Kernel":
        """Open a Python that lasts: what one cell leaves in it, the next one finds.

        It starts on first use. `sandboxkit.kernel.KernelOptions` has the options.
        """
        from sandboxkit.kernel import Kernel

        self._refuse_stopped()
        return Kernel(self, **options)

    def read_file(self, path: str, *, max_bytes: int = MAX_READ) -> Operation[bytes]:
        """Read a whole file. Raises SandboxFileNotFoundError; SandboxFileError past max_bytes."""
        path, max_bytes = self._path(path), _arguments.size("max_bytes", max_bytes)
        return self._call(
            lambda sandbox_id: self._provider.read_file(sandbox_id, path, max_bytes=max_bytes)
        )

    def write_file(
        self, path: str, data: _arguments.Content, *, mode: int | None = None
    ) -> Operation[None]:
        """Write a file atomically, making its parent folders.

        `mode` None keeps that of a file that exists and is 0o644 for a new one.
        """
        path, content = self._path(path), _arguments.content("data", data)
        mode = _arguments.mode(mode)
        return self._call(
            lambda sandbox_id: self._provider.write_file(sandbox_id, path, content, mode=mode)
        )

    def upload(self, local: str | os.PathLike[str], remote: str) -> Operation[None]:
        """Copy a file to the path `remote`, or a folder's contents into the folder `remote`.

        Modes and links inside a folder are kept. Folders are made as needed.
        """
        from sandboxkit import _transfer  # tarfile costs a tenth of the whole import

        remote, source = self._path(remote), _arguments.local_path("local", local)
        if not os.path.exists(source):
            raise ConfigurationError(f"cannot upload {source!r}: there is no such file here")
        folder, name = (remote, None) if os.path.isdir(source) else posixpath.split(remote)
        if name == "":
            raise ConfigurationError(f"remote={remote!r} is a folder; add the file's name to it")

        async def send(sandbox_id: str) -> None:
            async with aclosing(_transfer.pack(source, name)) as tar:
                await self._provider.put_archive(sandbox_id, folder, tar)

        return self._call(send)

    def download(
        self,
        remote: str,
        local: str | os.PathLike[str],
        *,
        max_bytes: int = MAX_DOWNLOAD,
        max_files: int = MAX_DOWNLOAD_FILES,
    ) -> "Operation[Transfer]":
        """Copy a file to the path `local`, or a folder's contents into the folder `local`.

        What the sandbox sends is not trusted: links and special files are left out and named
        in the result, nothing is written outside `local`. Raises SandboxFileError past a limit,
        for members more than 64 folders or 2 KiB deep, and for what changes meanwhile; OSError
        where this machine cannot take it.
        """
        from sandboxkit import _transfer

        remote, target = self._path(remote), _arguments.local_path("local", local)
        limits = _transfer.DownloadLimits(
            _arguments.size("max_bytes", max_bytes), _arguments.size("max_files", max_files)
        )

        async def fetch(sandbox_id: str) -> "Transfer":
            info = await self._provider.stat(sandbox_id, remote)
            if info.type not in (FileType.FILE, FileType.DIRECTORY):
                raise SandboxFileError(f"{remote!r} is a {info.type}; not downloaded", path=remote)
            single = info.type is FileType.FILE
            path = target
            if single and os.path.isdir(target):
                path = os.path.join(target, posixpath.basename(remote))
            tar = self._provider.get_archive(sandbox_id, remote)
            return await _transfer.unpack(tar, path, single=single, limits=limits)

        return self._call(fetch)

    def list_dir(self, path: str) -> Operation[builtins.list[FileInfo]]:
        """List a folder, sorted by path. Raises SandboxFileError for a very large one."""
        path = self._path(path)
        return self._call(lambda sandbox_id: self._provider.list_dir(sandbox_id, path))

    def stat(self, path: str) -> Operation[FileInfo]:
        """Describe a path without following a final link. Raises SandboxFileNotFoundError."""
        path = self._path(path)
        return self._call(lambda sandbox_id: self._provider.stat(sandbox_id, path))

    def remove(self, path: str, *, recursive: bool = False) -> Operation[None]:
        """Remove a file, a link or an empty folder; with `recursive` a whole tree."""
        path, recursive = self._path(path), _arguments.flag("recursive", recursive)
        return self._call(
            lambda sandbox_id: self._provider.remove(sandbox_id, path, recursive=recursive)
        )

    def logs(self) -> Operation[bytes]:
        """Return the newest output of the sandbox's main command, stdout and stderr together."""
        self._refuse_stopped()
        return self._call(lambda sandbox_id: self._provider.logs(sandbox_id))

    def status(self) -> Operation[SandboxInfo]:
        """Ask the backend. Raises SandboxNotFoundError once it is gone."""
        self._refuse_stopped()
        return self._call(lambda sandbox_id: self._provider.get(sandbox_id))

    def usage(self) -> Operation[Usage | None]:
        """Ask what it has used since its start; None from a backend that cannot tell."""
        self._refuse_stopped()
        return self._call(lambda sandbox_id: self._provider.usage(sandbox_id))

    def wait(self) -> Operation[int]:
        """Wait for the main command to end and return its exit status."""
        self._refuse_stopped()
        return self._call(lambda sandbox_id: self._provider.wait(sandbox_id))

    def renew(self, lifetime: float) -> Operation[None]:
        """Let it live `lifetime` seconds from now."""
        _arguments.positive("lifetime", lifetime, unit="seconds")
        self._refuse_stopped()

        async def renew(sandbox_id: str) -> None:
            self._life.renewed = float("-inf")  # no pool knows its end any more
            await self._provider.renew(sandbox_id, lifetime)

        return self._call(renew)

    def stop(self) -> Operation[None]:
        """End it and remove everything of it. Idempotent; a start in flight is undone.

        Cancelling it ends the waiting only.
        """
        return begun(self._life.stop)

    def __enter__(self) -> Self:
        with self._stopped_if_interrupted():
            return self.start().result()

    def __exit__(self, *exc: object) -> None:
        if not self.spec.detach:
            self.stop().result()

    async def __aenter__(self) -> Self:
        with self._stopped_if_interrupted():
            return await self.start()

    async def __aexit__(self, *exc: object) -> None:
        if not self.spec.detach:
            await self.stop()

    def _path(self, path: str) -> str:
        self._refuse_stopped()
        return _arguments.path(path)

    @contextlib.contextmanager
    def _stopped_if_interrupted(self) -> Iterator[None]:
        # Cancelled or Ctrl-C on entry: there is no exit to stop what may just have started.
        # Nobody waits for it here, where a time limit may be over; closing the session does.
        try:
            yield
        except Exception:
            raise
        except BaseException:
            self.stop()
            raise

    def _refuse_stopped(self) -> None:
        self._life.refuse_ended()

    def _call(self, work: Callable[[str], Awaitable[T]]) -> Operation[T]:
        return Operation(self._life.call(work))

    def _process(
        self, argv: tuple[str, ...], run: _Run, limits: Limits, live: Stdin | None
    ) -> Process:
        async def ready() -> Callable[[Output], Awaitable[Exit]]:
            sandbox_id = await self._life.started()
            return lambda output: self._life.during(sandbox_id, lambda box: run(box, output))

        return Process(argv, ready, limits, live)


def _cwd(cwd: str | None) -> str | None:
    return None if cwd is None else _arguments.path(cwd, "cwd")


def _user(user: str | None) -> str | None:
    return None if user is None else _arguments.text("user", user)


def _limits(timeout: float | None, check: bool, output_limit: int | None) -> Limits:
    return Limits(
        timeout=_arguments.timeout(timeout),
        check=_arguments.flag("check", check),
        output=None if output_limit is None else _arguments.size("output_limit", output_limit),
    )


def _input(
    stdin: _arguments.Content | bool | None, *, open_: bool = False
) -> tuple[Stdin | None, AsyncIterator[StdinItem] | None]:
    """What to write to while the command runs, and what it reads; `open_` where none is given."""
    given = _arguments.stdin(stdin)
    if given is True or (open_ and not given):
        live = Stdin()
        return live, live._items()
    return None, _once(given) if isinstance(given, bytes) else None


async def _once(data: bytes) -> AsyncIterator[StdinItem]:
    if data:
        yield data

"""The SDK's session for one sandbox: commands, also those that run between an agent's turns, files and archives."""

import asyncio
import io
import re
import tempfile
import time
from collections import deque
from collections.abc import AsyncIterable, Iterable, Sequence
from pathlib import Path

from agents.sandbox.errors import (
    ExecTimeoutError,
    PtySessionNotFoundError,
    WorkspaceArchiveReadError,
    WorkspaceArchiveWriteError,
    WorkspaceWriteTypeError,
)
from agents.sandbox.manifest import Manifest
from agents.sandbox.session.base_sandbox_session import BaseSandboxSession
from agents.sandbox.session.pty_output import collect_pty_output
from agents.sandbox.session.pty_types import (
    PTY_PROCESSES_MAX,
    PtyExecUpdate,
    allocate_pty_process_id,
    clamp_pty_yield_time_ms,
    process_id_to_prune_from_meta,
    resolve_pty_write_yield_time_ms,
)
from agents.sandbox.session.runtime_helpers import (
    RESOLVE_WORKSPACE_PATH_HELPER,
    RuntimeHelperScript,
)
from agents.sandbox.types import ExecResult, User
from typing_extensions import override

from sandboxkit import (
    CommandStartError,
    CommandTimeoutError,
    ConfigurationError,
    Process,
    PtySize,
    Sandbox,
    SandboxError,
    SandboxNotFoundError,
    SandboxState,
    SandboxTerminatedError,
)
from sandboxkit.integrations.openai_agents import _errors
from sandboxkit.integrations.openai_agents._state import SandboxkitSessionState

_UNREAD = 1 << 20
"""Maximum bytes of unread output per command; older output is dropped."""
_KILL_SECONDS = 30.0
NOT_STARTED = 127


class _Terminal:
    """One running command and its unread output."""

    def __init__(self, process: Process, *, tty: bool) -> None:
        self.process, self.tty = process, tty
        self.used = time.monotonic()
        self.unread = bytearray()
        self.dropped = 0
        self.taken: deque[bytes] = deque()
        self.lock, self.changed, self.ended = asyncio.Lock(), asyncio.Event(), asyncio.Event()
        self.status: int | None = None
        self.error: SandboxError | None = None
        self.following = asyncio.create_task(self._follow())

    async def _follow(self) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                for stream in (self.process.stdout, self.process.stderr):
                    group.create_task(self._read(stream.bytes()))
            self.status = (await self.process).returncode
        except SandboxError as error:
            self.error = error
        finally:
            self.ended.set()
            self.changed.set()

    async def _read(self, pieces: AsyncIterable[bytes]) -> None:
        async for piece in pieces:
            self.unread += piece
            excess = max(0, len(self.unread) - _UNREAD)
            del self.unread[:excess]
            self.dropped += excess

    async def take(self) -> None:
        """Move the unread output to `taken`. The SDK calls this once per update, which limits its size."""
        if self.dropped:
            self.taken.append(b"[%d bytes dropped here]\n" % self.dropped)
        self.taken.append(bytes(self.unread))
        self.unread.clear()
        self.dropped = 0

    def outcome(self) -> tuple[int, bytes]:
        """Return the exit status and a text to append to the output.

        Raises ExecTransportError if the outcome of the command is unknown.
        """
        if self.status is not None:
            return self.status, b""
        error = self.error
        if isinstance(error, CommandStartError) and not error.retryable:
            return NOT_STARTED, f"{error}\n".encode()
        raise _errors.transport(
            self.process.argv, error or SandboxError("the command was abandoned")
        )


class RunningCommands:
    """The running commands of one session, by the session ids that the agent uses."""

    def __init__(self) -> None:
        self._open: dict[int, _Terminal] = {}

    async def open(
        self, process: Process, *, tty: bool, wait_ms: int, max_tokens: int | None
    ) -> PtyExecUpdate:
        """Add a command; return its output after `wait_ms` milliseconds, or at its end if that is sooner.

        At the SDK's limit of commands another one is killed first.
        """
        number = allocate_pty_process_id(set(self._open))
        terminal = _Terminal(process, tty=tty)
        oldest = self._oldest()
        self._open[number] = terminal
        if oldest is not None:
            await _end([oldest])
        return await self._update(number, terminal, wait_ms, max_tokens)

    async def write(
        self, number: int, chars: str, *, wait_ms: int, max_tokens: int | None
    ) -> PtyExecUpdate:
        """Type `chars` into a command and return its output after `wait_ms` milliseconds or at its end.

        Raises PtySessionNotFoundError, and RuntimeError if the command has no terminal to type into.
        """
        terminal = self._open.get(number)
        if terminal is None:
            raise PtySessionNotFoundError(session_id=number)
        if chars and not terminal.tty:
            # The SDK's tool recognizes this error by its message.
            raise RuntimeError("stdin is not available for this process")
        terminal.used = time.monotonic()
        if chars:
            try:
                await terminal.process.stdin.write(chars.encode(errors="replace"))
            except BrokenPipeError:
                pass  # the command has ended, as the update reports
        return await self._update(number, terminal, wait_ms, max_tokens)

    async def close(self) -> None:
        """Kill all commands with their process trees."""
        terminals = list(self._open.values())
        self._open.clear()
        await _end(terminals)

    async def _update(
        self, number: int, terminal: _Terminal, wait_ms: int, max_tokens: int | None
    ) -> PtyExecUpdate:
        output, tokens, closed = await collect_pty_output(
            output_chunks=terminal.taken,
            output_lock=terminal.lock,
            output_notify=terminal.changed,
            is_done=terminal.ended.is_set,
            yield_time_ms=wait_ms,
            max_output_tokens=max_tokens,
            settle_output=terminal.take,
        )
        if not closed:
            return PtyExecUpdate(number, output, None, tokens)
        self._open.pop(number, None)
        status, message = terminal.outcome()
        return PtyExecUpdate(None, output + message, status, tokens)

    def _oldest(self) -> _Terminal | None:
        """If the SDK's limit of commands is reached, remove and return the one to end; else None."""
        if len(self._open) < PTY_PROCESSES_MAX:
            return None
        known = [(number, each.used, each.ended.is_set()) for number, each in self._open.items()]
        number = process_id_to_prune_from_meta(known)
        return None if number is None else self._open.pop(number)


async def _end(terminals: list[_Terminal]) -> None:
    if not terminals:
        return
    for terminal in terminals:
        terminal.process.kill()
    _, late = await asyncio.wait([each.following for each in terminals], timeout=_KILL_SECONDS)
    for task in late:
        task.cancel()


_OUTPUT_LIMIT = 10 << 20
_LEAST_SECONDS = 0.001
_PROBE_SECONDS = 60.0
_YIELD_SECONDS = 10.0
_WRITE_YIELD_SECONDS = 0.25
_WRITE = 'mkdir -p -- "${1%/*}/" && exec cat > "$1"'
_ARCHIVE_SECONDS = 1800.0
_CHUNK = 1 << 20
_IN_MEMORY = 16 << 20
_KEPT_OUTPUT = 64 << 10
_UNPACK = 'mkdir -p -- "$1" && exec tar -C "$1" -xf -'


def check_manifest(manifest: Manifest) -> None:
    """Raise the SDK's ConfigurationError for features of a manifest that are not supported."""
    if mounts := [str(path) for _, path in manifest.mount_targets()]:
        raise _errors.refused(
            f"the manifest mounts {', '.join(mounts)}: sandboxkit does not support a manifest's mounts; "
            "put the files into the manifest or the image",
            "materialize",
        )
    for grant in manifest.extra_path_grants:
        if grant.host_path is not None:
            raise _errors.refused(
                f"extra_path_grants: {grant.path} is a folder of this machine, which sandboxes of "
                "sandboxkit cannot access; copy it with LocalDir",
                "materialize",
            )


class SandboxkitSession(BaseSandboxSession):
    """A sandbox of sandboxkit with the SDK's session interface, created by `SandboxkitClient`.

    A command's exit is a result; its timeout raises ExecTimeoutError. An infrastructure failure
    raises ExecTransportError or the workspace error of the call, with sandboxkit's error as its
    `cause`. `shutdown()` deletes the sandbox.
    """

    def __init__(self, state: SandboxkitSessionState, sandbox: Sandbox, max_archive: int) -> None:
        self.state = state
        self._sandbox = sandbox
        self._max_archive = max_archive
        self._terminals = RunningCommands()
        self._whole = False

    @property
    def sandbox(self) -> Sandbox:
        """The sandboxkit sandbox, for calls that the SDK does not offer."""
        return self._sandbox

    @override
    async def start(self) -> None:
        try:
            await super().start()
        except BaseException:
            # The SDK abandons a session whose start failed. Not awaited: this may be a cancellation.
            self._sandbox.stop()
            raise

    @override
    async def _ensure_backend_started(self) -> None:
        await self._sandbox.start()

    @override
    async def _after_start(self) -> None:
        self._whole = True

    @override
    def _wrap_start_error(self, error: Exception) -> Exception:
        if isinstance(error, SandboxError):
            return _errors.started(self.state.manifest.root, error)
        return error

    @override
    async def _persist_snapshot(self) -> None:
        # After a failed start, a partial workspace would replace a complete snapshot.
        if self._whole:
            await super()._persist_snapshot()

    @override
    async def _shutdown_backend(self) -> None:
        try:
            await self._sandbox.stop()
        except SandboxError as error:
            raise _errors.stopped(self.state.manifest.root, error) from error

    @override
    async def running(self) -> bool:
        """Whether the sandbox is running. Raises WorkspaceStartError if its status cannot be read."""
        try:
            return (await self._sandbox.status()).state is SandboxState.RUNNING
        except (SandboxNotFoundError, SandboxTerminatedError):
            return False
        except SandboxError as error:
            raise _errors.started(self.state.manifest.root, error) from error

    @override
    async def _validate_manifest_application(
        self,
        *,
        only_ephemeral: bool = False,
        manifest: Manifest | None = None,
        session_running: bool | None = None,
    ) -> None:
        await super()._validate_manifest_application(
            only_ephemeral=only_ephemeral, manifest=manifest, session_running=session_running
        )
        check_manifest(self.state.manifest if manifest is None else manifest)

    @override
    async def exec(
        self,
        *command: str | Path,
        timeout: float | None = None,
        shell: bool | list[str] = True,
        user: str | User | None = None,
    ) -> ExecResult:
        """Run a command to its end; see `BaseSandboxSession.exec`. `user` needs no sudo.

        The middle of a stream of more than 10 MiB is dropped, and a last line of stderr reports it.
        """
        return await self._run(
            self._prepare_exec_command(*command, shell=shell, user=None), timeout, user
        )

    @override
    async def _exec_internal(
        self, *command: str | Path, timeout: float | None = None
    ) -> ExecResult:
        return await self._run([str(part) for part in command], timeout, None)

    async def _run(
        self, argv: Sequence[str], limit: float | None, user: str | User | None
    ) -> ExecResult:
        seconds = None if limit is None else max(limit, _LEAST_SECONDS)
        env = await self.state.manifest.environment.resolve()
        try:
            result = await self._sandbox.exec(
                argv, env=env, user=_name(user), timeout=seconds, output_limit=_OUTPUT_LIMIT
            )
        except CommandTimeoutError as error:
            raise ExecTimeoutError(command=argv, timeout_s=limit, cause=error) from error
        except (SandboxError, UnicodeEncodeError) as error:
            message = _not_started(argv, user, error)
            return ExecResult(stdout=b"", stderr=message, exit_code=NOT_STARTED)
        stderr = result.stderr_bytes
        if result.truncated:
            stderr += b"\n[output beyond %d bytes: its middle was dropped]\n" % _OUTPUT_LIMIT
        return ExecResult(stdout=result.stdout_bytes, stderr=stderr, exit_code=result.returncode)

    @override
    def supports_pty(self) -> bool:
        return True

    @override
    async def pty_exec_start(
        self,
        *command: str | Path,
        timeout: float | None = None,
        shell: bool | list[str] = True,
        user: str | User | None = None,
        tty: bool = False,
        yield_time_s: float | None = None,
        max_output_tokens: int | None = None,
    ) -> PtyExecUpdate:
        """Start a command that may keep running; return its output after `yield_time_s` seconds.

        `timeout`, which the SDK defines as a limit of the start, has no effect.
        """
        argv = self._prepare_exec_command(*command, shell=shell, user=None)
        env = await self.state.manifest.environment.resolve()
        try:
            process: Process = self._sandbox.exec(
                argv, env=env, user=_name(user), pty=PtySize() if tty else False
            )
        except (SandboxError, UnicodeEncodeError) as error:
            message = _not_started(argv, user, error)
            return PtyExecUpdate(None, message, NOT_STARTED, None)
        seconds = _YIELD_SECONDS if yield_time_s is None else yield_time_s
        return await self._terminals.open(
            process,
            tty=tty,
            wait_ms=clamp_pty_yield_time_ms(int(seconds * 1000)),
            max_tokens=max_output_tokens,
        )

    @override
    async def pty_write_stdin(
        self,
        *,
        session_id: int,
        chars: str,
        yield_time_s: float | None = None,
        max_output_tokens: int | None = None,
    ) -> PtyExecUpdate:
        seconds = _WRITE_YIELD_SECONDS if yield_time_s is None else yield_time_s
        wait_ms = resolve_pty_write_yield_time_ms(
            yield_time_ms=int(seconds * 1000), input_empty=not chars
        )
        return await self._terminals.write(
            session_id, chars, wait_ms=wait_ms, max_tokens=max_output_tokens
        )

    @override
    async def pty_terminate_all(self) -> None:
        await self._terminals.close()

    @override
    def _runtime_helpers(self) -> tuple[RuntimeHelperScript, ...]:
        return (RESOLVE_WORKSPACE_PATH_HELPER,)

    @override
    async def _validate_path_access(self, path: Path | str, *, for_write: bool = False) -> Path:
        return await self._validate_remote_path_access(path, for_write=for_write)

    @override
    async def read(self, path: Path, *, user: str | User | None = None) -> io.IOBase:
        """Read a whole file of at most 256 MiB."""
        if user is not None:
            place = await self._check_read_with_exec(path, user=user)
        else:
            place = await self._validate_path_access(path)
        try:
            return io.BytesIO(await self._sandbox.read_file(place.as_posix()))
        except SandboxError as error:
            raise _errors.reading(Path(path), error) from error

    @override
    async def _read_bounded(self, path: Path, *, max_bytes: int) -> bytes:
        place = await self._validate_path_access(path)
        argv = ["head", "-c", str(max_bytes), "--", place.as_posix()]
        try:
            result = await self._sandbox.exec(argv, timeout=_PROBE_SECONDS, output_limit=None)
        except SandboxError as error:
            raise _errors.reading(path, error) from error
        if result.returncode:
            done = ExecResult(stdout=b"", stderr=result.stderr_bytes, exit_code=result.returncode)
            await self._raise_read_error_from_exec(
                path=path, workspace_path=place, command=argv, result=done
            )
        return result.stdout_bytes

    @override
    async def write(self, path: Path, data: io.IOBase, *, user: str | User | None = None) -> None:
        """Write a whole file and create its parent folders; with `user`, that user owns the file."""
        payload = data.read()
        if isinstance(payload, str):
            payload = payload.encode()
        if not isinstance(payload, bytes | bytearray):
            raise WorkspaceWriteTypeError(path=Path(path), actual_type=type(payload).__name__)
        place = (await self._validate_path_access(path, for_write=True)).as_posix()
        try:
            if user is None:
                await self._sandbox.write_file(place, bytes(payload))
                return
            argv = ["sh", "-c", _WRITE, "sh", place]
            result = await self._sandbox.exec(
                argv, user=_name(user), stdin=bytes(payload), timeout=_PROBE_SECONDS
            )
        except SandboxError as error:
            raise _errors.writing(Path(place), error) from error
        if result.returncode:
            context = {"exit_code": result.returncode, "stderr": result.stderr}
            raise WorkspaceArchiveWriteError(path=Path(place), context=context, retryable=False)

    @override
    async def persist_workspace(self) -> io.IOBase:
        """Return the workspace as a tar stream, without ephemeral files.

        Raises WorkspaceArchiveReadError, also if it exceeds the client's `max_archive_bytes`.
        """
        root, skip = self._workspace_root_path(), self._persist_workspace_skip_relpaths()
        return await _pack(self._sandbox, root, skip, self._max_archive)

    @override
    async def hydrate_workspace(self, data: io.IOBase) -> None:
        await _unpack(self._sandbox, self._workspace_root_path(), data)


def _name(user: str | User | None) -> str | None:
    return user.name if isinstance(user, User) else user


def _not_started(
    argv: Sequence[str], user: str | User | None, error: SandboxError | UnicodeEncodeError
) -> bytes:
    """Return the message of a command that could not be started; raise an SDK error for any other cause."""
    if isinstance(error, ConfigurationError) and user is not None:
        raise _errors.refused(str(error), "exec", error) from error
    its_own = isinstance(error, CommandStartError) and not error.retryable
    if (
        isinstance(error, SandboxError)
        and not its_own
        and not isinstance(error, ConfigurationError)
    ):
        raise _errors.transport(argv, error) from error
    return f"{error}\n".encode()


async def _pack(sandbox: Sandbox, root: Path, skip: Iterable[Path], limit: int) -> io.IOBase:
    """Pack the folder `root` without the paths in `skip`; the caller must close the returned file.

    Raises WorkspaceArchiveReadError, also if the archive has more than `limit` bytes.
    """
    without = [f"--exclude=./{_escaped(path)}" for path in sorted(skip)]
    argv = ["tar", *without, "-C", root.as_posix(), "-cf", "-", "."]
    archive = tempfile.SpooledTemporaryFile(max_size=_IN_MEMORY)  # noqa: SIM115 - the caller's
    process: Process | None = None
    try:
        process = sandbox.exec(argv, cwd="/", timeout=_ARCHIVE_SECONDS, output_limit=_KEPT_OUTPUT)
        size = 0
        async for chunk in process.stdout.bytes():
            size += len(chunk)
            if size > limit:
                reason = {"reason": "archive_too_large", "limit": limit}
                raise WorkspaceArchiveReadError(path=root, context=reason, retryable=False)
            archive.write(chunk)
        result = await process
        if result.returncode:
            failed = _failed(result.returncode, result.stderr)
            raise WorkspaceArchiveReadError(path=root, context=failed, retryable=False)
        archive.seek(0)
    except BaseException as error:
        archive.close()
        if process is not None:
            process.kill()
        if isinstance(error, SandboxError):
            raise _errors.reading(root, error) from error
        raise
    return archive


async def _unpack(sandbox: Sandbox, root: Path, data: io.IOBase) -> None:
    """Unpack a tar stream into the folder `root`. Raises WorkspaceArchiveWriteError.

    tar runs inside the sandbox, so a malicious archive can do no more than a command there.
    """
    argv = ["sh", "-c", _UNPACK, "sh", root.as_posix()]
    process: Process | None = None
    try:
        process = sandbox.exec(
            argv, cwd="/", stdin=True, timeout=_ARCHIVE_SECONDS, output_limit=_KEPT_OUTPUT
        )
        await _send(process, data, root)
        result = await process
    except BaseException as error:
        if process is not None:
            process.kill()
        if isinstance(error, SandboxError):
            raise _errors.writing(root, error) from error
        raise
    if result.returncode:
        failed = _failed(result.returncode, result.stderr)
        raise WorkspaceArchiveWriteError(path=root, context=failed, retryable=False)


async def _send(process: Process, data: io.IOBase, root: Path) -> None:
    try:
        while chunk := await asyncio.to_thread(data.read, _CHUNK):
            if not isinstance(chunk, bytes | bytearray):
                raise WorkspaceWriteTypeError(path=root, actual_type=type(chunk).__name__)
            await process.stdin.write(bytes(chunk))
        await process.stdin.close()
    except BrokenPipeError:
        pass  # tar has ended; the caller reports its status and stderr


def _escaped(path: Path) -> str:
    return re.sub(r"([\[\]\\*?])", r"\\\1", path.as_posix())


def _failed(status: int, stderr: str) -> dict[str, object]:
    return {"reason": "tar_failed", "exit_code": status, "stderr": stderr[-2000:]}

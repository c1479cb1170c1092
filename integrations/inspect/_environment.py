"""The `sandboxenv` that is registered with Inspect under the name "sandboxkit"."""

import errno
import posixpath
import secrets
import shlex
from collections.abc import Callable
from typing import Any, Literal, TypeVar, overload

from inspect_ai.util import (
    ExecResult,
    OutputLimitExceededError,
    SandboxConnection,
    SandboxEnvironment,
    SandboxEnvironmentConfigType,
    SandboxEnvironmentLimits,
    SandboxUserUnsupportedError,
    sandboxenv,
)
from pydantic import BaseModel
from typing_extensions import override

from sandboxkit import (
    CommandStartError,
    CommandTimeoutError,
    ConfigurationError,
    Operation,
    Sandbox,
    SandboxFileError,
    SandboxFileNotFoundError,
    Session,
)
from sandboxkit.images import image_on
from sandboxkit.integrations.inspect._config import FILES, OF_DOCKER, SandboxkitConfig, read

T = TypeVar("T")
_IS_DIRECTORY, _NOT_ALLOWED, _READABLE = 21, 13, 27
_WHY_NOT_READ = (
    f'[ -d "$1" ] && exit {_IS_DIRECTORY}; [ -e "$1" ] || exit 0; '
    f'[ -r "$1" ] && exit {_READABLE}; exit {_NOT_ALLOWED}'
)
_MAY_WRITE = (
    f'[ -d "$1" ] && exit {_IS_DIRECTORY}; [ ! -e "$1" ] || [ -w "$1" ] || exit {_NOT_ALLOWED}'
)
_NOT_FOUND = 127
_PROBE_SECONDS = 60.0
_MAX_ARGV = 1024 * 1024
"""Maximum size in bytes of a command in sandboxkit; Linux allows about twice that."""


@sandboxenv(name="sandboxkit")
class SandboxkitSandboxEnvironment(SandboxEnvironment):
    """The sandbox of one Inspect sample, stopped when the sample ends.

    Infrastructure errors are raised as sandboxkit's own, so Inspect fails the sample (and retries it
    if configured) instead of showing them to the model as the output of its command.
    """

    def __init__(self, session: Session, sandbox: Sandbox, workdir: str) -> None:
        """`workdir` is the directory in which the sandbox's commands start."""
        super().__init__()
        self._session = session
        self._sandbox = sandbox
        self._workdir = workdir

    @classmethod
    @override
    def config_files(cls) -> list[str]:
        return [*FILES, *OF_DOCKER]

    @classmethod
    @override
    def config_deserialize(cls, config: dict[str, Any]) -> BaseModel:
        return SandboxkitConfig.model_validate(config)

    @classmethod
    @override
    async def sample_init(
        cls,
        task_name: str,
        config: SandboxEnvironmentConfigType | None,
        metadata: dict[str, str],
    ) -> dict[str, SandboxEnvironment]:
        given = read(config)
        session = Session(given.provider, tags="inspect", **given.options())
        image = image_on(session.provider_name, given.options().get("image"))
        try:
            sandbox = await session.sandbox(image=image).start()
            workdir = await sandbox.workdir()
        except BaseException:
            session.close()  # not awaited: this task may be cancelled; the close continues
            raise
        return {"default": cls(session, sandbox, workdir)}

    @classmethod
    @override
    async def sample_cleanup(
        cls,
        task_name: str,
        config: SandboxEnvironmentConfigType | None,
        environments: dict[str, SandboxEnvironment],
        interrupted: bool,
    ) -> None:
        for environment in environments.values():
            await environment.as_type(SandboxkitSandboxEnvironment)._session.close()

    @override
    async def exec(
        self,
        cmd: list[str],
        input: str | bytes | None = None,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        user: str | None = None,
        timeout: int | None = None,
        timeout_retry: bool = True,
        concurrency: bool = True,
    ) -> ExecResult[str]:
        """Run a command; see `SandboxEnvironment.exec`.

        `timeout_retry` has no effect: a timeout is always the command's own and never the transport's,
        and a retry could repeat the command's side effects.
        """
        process = self._sandbox.exec(
            await self._short(cmd),
            cwd=None if cwd is None else self._path(cwd),
            env=env,
            user=user,
            timeout=timeout,
            stdin=input,
            output_limit=SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE,
        )
        try:
            result = await process
        except CommandTimeoutError as error:
            raise TimeoutError(str(error)) from error
        except CommandStartError as error:
            if error.errno == errno.EACCES or "permission denied" in str(error).lower():
                raise PermissionError(str(error)) from error
            if error.retryable:
                raise
            return ExecResult(False, _NOT_FOUND, "", str(error))
        except ConfigurationError as error:
            if user is None:
                raise
            raise SandboxUserUnsupportedError(str(error)) from error
        if result.truncated:
            raise OutputLimitExceededError(
                SandboxEnvironmentLimits.MAX_EXEC_OUTPUT_SIZE_STR, result.stdout + result.stderr
            )
        return ExecResult(result.returncode == 0, result.returncode, result.stdout, result.stderr)

    @override
    async def write_file(self, file: str, contents: str | bytes) -> None:
        path = self._path(file)
        # sandboxkit replaces the file atomically, even if its permissions forbid writing.
        await self._probe(_MAY_WRITE, path)
        await self._file_call(path, lambda: self._sandbox.write_file(path, contents))

    @overload
    async def read_file(self, file: str, text: Literal[True] = True) -> str: ...

    @overload
    async def read_file(self, file: str, text: Literal[False]) -> bytes: ...

    @override
    async def read_file(self, file: str, text: bool = True) -> str | bytes:
        path, limit = self._path(file), SandboxEnvironmentLimits.MAX_READ_FILE_SIZE
        data = await self._file_call(path, lambda: self._sandbox.read_file(path, max_bytes=limit))
        return data.decode() if text else data

    @override
    async def connection(self, *, user: str | None = None) -> SandboxConnection:
        if user is not None:
            raise NotImplementedError(f"connections as the user {user!r} are not supported")
        provider, sandbox_id = self._sandbox.provider_name, self._sandbox.id
        command = f"sandboxkit shell --provider {provider} {sandbox_id}"
        return SandboxConnection(type="sandboxkit", command=command, container=sandbox_id)

    @override
    def default_polling_interval(self) -> float:
        return 0.2

    def _path(self, file: str) -> str:
        return posixpath.normpath(posixpath.join(self._workdir, file))

    async def _short(self, cmd: list[str]) -> list[str]:
        """Return `cmd` or, if it is too long to send, a command that runs it from a file."""
        if sum(len(part.encode()) + 1 for part in cmd) <= _MAX_ARGV:
            return cmd
        path = f"/tmp/command-{secrets.token_hex(8)}"
        script = f'/bin/rm -f "$0" 2>/dev/null\nexec {shlex.join(cmd)}\n'
        await self._sandbox.write_file(path, script)
        return ["/bin/sh", path]

    async def _file_call(self, path: str, call: Callable[[], Operation[T]]) -> T:
        """Make a file call on `path`. Raises the same errors as `open`, and OutputLimitExceededError."""
        try:
            return await call()
        except SandboxFileNotFoundError:
            raise
        except SandboxFileError:
            if await self._probe(_WHY_NOT_READ, path) == _READABLE:
                limit = SandboxEnvironmentLimits.MAX_READ_FILE_SIZE_STR
                raise OutputLimitExceededError(limit, None) from None
            raise

    async def _probe(self, script: str, path: str) -> int:
        """Run `script` as the sandbox's user to find out whether `path` can be read or written.

        Returns its exit status. Raises IsADirectoryError or PermissionError.
        """
        argv = ["/bin/sh", "-c", script, "sh", path]
        result = await self._sandbox.exec(argv, timeout=_PROBE_SECONDS)
        if result.returncode == _IS_DIRECTORY:
            raise IsADirectoryError(f"{path} is a directory")
        if result.returncode == _NOT_ALLOWED:
            raise PermissionError(f"no permission for {path}")
        return result.returncode

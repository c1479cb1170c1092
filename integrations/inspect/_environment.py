"""The `sandboxenv` that Inspect finds under the name "sandboxkit"."""

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
from sandboxkit.integrations.inspect._config import FILES, SandboxkitConfig, read

T = TypeVar("T")
_WORKDIR = "/workspace"
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
"""Bytes that sandboxkit takes as one command; Linux itself takes about twice that."""


@sandboxenv(name="sandboxkit")
class SandboxkitEnvironment(SandboxEnvironment):
    """One sandbox for each sample, stopped when the sample ends.

    Errors that are neither the command's nor the file's stay errors of sandboxkit, so that
    Inspect fails the sample (and retries it where it is told to) rather than show them to the
    model as what its command printed.
    """

    def __init__(self, session: Session, sandbox: Sandbox) -> None:
        super().__init__()
        self._session = session
        self._sandbox = sandbox
        self._workdir = sandbox.spec.workdir or _WORKDIR

    @classmethod
    @override
    def config_files(cls) -> list[str]:
        return list(FILES)

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
        try:
            sandbox = await session.sandbox().start()
        except BaseException:
            session.close()  # not awaited, as this task may be cancelled; it goes on by itself
            raise
        return {"default": cls(session, sandbox)}

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
            await environment.as_type(SandboxkitEnvironment)._session.close()

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

        `timeout_retry` does nothing: a timeout here is the command's own, never that of the
        way to it, and running a command again that had its time could do its work twice.
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
        # sandboxkit replaces a file as a whole, which its own permissions would not prevent.
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
            raise NotImplementedError("connection not implemented for a user of one's choice")
        provider, sandbox_id = self._sandbox.provider_name, self._sandbox.id
        command = f"sandboxkit shell --provider {provider} {sandbox_id}"
        return SandboxConnection(type="sandboxkit", command=command, container=sandbox_id)

    @override
    def default_polling_interval(self) -> float:
        return 0.2

    def _path(self, file: str) -> str:
        return posixpath.normpath(posixpath.join(self._workdir, file))

    async def _short(self, cmd: list[str]) -> list[str]:
        """The command, or one that reads it from a file where it is too long to be sent."""
        if sum(len(part.encode()) + 1 for part in cmd) <= _MAX_ARGV:
            return cmd
        path = f"/tmp/command-{secrets.token_hex(8)}"
        script = f'/bin/rm -f "$0" 2>/dev/null\nexec {shlex.join(cmd)}\n'
        await self._sandbox.write_file(path, script)
        return ["/bin/sh", path]

    async def _file_call(self, path: str, call: Callable[[], Operation[T]]) -> T:
        """Make a file call; what fails raises what `open` would."""
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
        """Ask the sandbox, as its own user, what hinders a file call."""
        argv = ["/bin/sh", "-c", script, "sh", path]
        result = await self._sandbox.exec(argv, timeout=_PROBE_SECONDS)
        if result.returncode == _IS_DIRECTORY:
            raise IsADirectoryError(f"{path} is a directory")
        if result.returncode == _NOT_ALLOWED:
            raise PermissionError(f"no permission for {path}")
        return result.returncode

"""The sandbox backend for deepagents: runs commands and transfers files."""

from collections.abc import Awaitable, Callable
from typing import TypeVar

from deepagents.backends.protocol import (
    ExecuteResponse,
    FileDownloadResponse,
    FileUploadResponse,
)
from deepagents.backends.sandbox import BaseSandbox
from typing_extensions import override

from sandboxkit import (
    CommandStartError,
    CommandTimeoutError,
    ConfigurationError,
    FileType,
    Operation,
    Sandbox,
    SandboxFileError,
    SandboxFileNotFoundError,
)
from sandboxkit.integrations._tools import killed_after, shell_argv

T = TypeVar("T")

_OUTPUT_LIMIT = 1024 * 1024
_NOT_STARTED, _TIMED_OUT = 126, 124


class SandboxkitBackend(BaseSandbox):
    """Uses a sandbox as the backend of a deep agent.

    The agent's first call starts the sandbox; the caller's session deletes it. Commands run in bash,
    or in sh if there is no bash, with a limit of `timeout` seconds unless a call gives its own; 0
    means no limit. At most 1 MiB of a command's output is kept, its beginning and end. The model's own
    mistakes are returned to it as results. Infrastructure errors, including the end of the sandbox,
    are raised from the agent's run.
    """

    def __init__(self, sandbox: Sandbox, *, timeout: float = 120.0) -> None:
        if timeout < 0:
            raise ConfigurationError(f"timeout={timeout!r}: use a number of seconds, or 0 for none")
        self._sandbox, self._timeout = sandbox, timeout

    @property
    @override
    def id(self) -> str:
        """The sandbox's id, for example for `sandboxkit exec`. Starts the sandbox if necessary."""
        return self._sandbox.start().result().id or ""

    @override
    def execute(self, command: str, *, timeout: int | None = None) -> ExecuteResponse:
        """Run a shell command; its output is stdout and stderr interleaved."""
        return Operation(self.aexecute(command, timeout=timeout)).result()

    @override
    async def aexecute(
        self,
        command: str,
        *,
        timeout: int | None = None,
    ) -> ExecuteResponse:
        limit = self._timeout if timeout is None else timeout
        try:
            result = await self._sandbox.exec(
                shell_argv(f"exec 2>&1\n{command}"),
                timeout=limit or None,
                output_limit=_OUTPUT_LIMIT,
            )
        except CommandTimeoutError as error:
            result = error.result
            output = f"{result.stdout}{result.stderr}\n{killed_after(limit)}"
            return ExecuteResponse(output, _TIMED_OUT, result.truncated)
        except CommandStartError as error:
            if error.retryable:
                raise
            return ExecuteResponse(str(error), _NOT_STARTED)
        # Messages of the shell itself, such as syntax errors, arrive on stderr.
        return ExecuteResponse(result.stdout + result.stderr, result.returncode, result.truncated)

    @override
    def upload_files(self, files: list[tuple[str, bytes]]) -> list[FileUploadResponse]:
        """Write files and create their folders; each response has its file's error, if any."""
        return Operation(self.aupload_files(files)).result()

    @override
    async def aupload_files(self, files: list[tuple[str, bytes]]) -> list[FileUploadResponse]:
        return [FileUploadResponse(path, await self._upload(path, data)) for path, data in files]

    @override
    def download_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        """Read files; each response has its file's content or error."""
        return Operation(self.adownload_files(paths)).result()

    @override
    async def adownload_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        return [FileDownloadResponse(path, *await self._download(path)) for path in paths]

    async def _upload(self, path: str, data: bytes) -> str | None:
        return (await self._file_call(path, lambda: self._sandbox.write_file(path, data)))[1]

    async def _download(self, path: str) -> tuple[bytes | None, str | None]:
        return await self._file_call(path, lambda: self._sandbox.read_file(path))

    async def _file_call(
        self, path: str, call: Callable[[], Awaitable[T]]
    ) -> tuple[T | None, str | None]:
        """Return a file call's result, or deepagents' code for its error."""
        if not path.startswith("/"):
            return None, "invalid_path"
        try:
            return await call(), None
        except SandboxFileNotFoundError:
            return None, "file_not_found"
        except SandboxFileError as error:
            return None, await self._hindrance(path, error)
        except ConfigurationError:
            return None, "invalid_path"

    async def _hindrance(self, path: str, error: SandboxFileError) -> str:
        try:
            if (await self._sandbox.stat(path)).type is FileType.DIRECTORY:
                return "is_directory"
        except SandboxFileError:
            pass
        return "permission_denied" if "permission denied" in str(error).lower() else str(error)

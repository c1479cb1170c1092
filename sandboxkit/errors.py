"""Every error sandboxkit raises, in one tree.

    SandboxError                         provider, sandbox_id, retryable
    ├── ConfigurationError (ValueError)  bad argument, unknown provider, missing extra, unsupported option
    ├── AuthenticationError              the backend refused our credentials or permissions
    ├── ProviderUnavailableError         retryable: transport, throttling (retry_after), a backend fault
    ├── SandboxStartError                the sandbox could not be created
    │   ├── CapacityError                retryable: no room, quota reached
    │   └── ImageNotFoundError
    ├── SandboxNotFoundError             no such sandbox, or it is gone
    ├── SandboxTerminatedError           the sandbox died under a command (lifetime, oom, killed)
    ├── SandboxFileError                 a file operation failed
    │   └── SandboxFileNotFoundError (FileNotFoundError)
    └── CommandError                     argv and the output so far
        ├── CommandFailedError           non-zero exit, only with check=True
        └── CommandTimeoutError (TimeoutError)

The rule for training: a non-zero exit and `CommandTimeoutError` are the program's outcome and
get a reward. Every other `SandboxError` is the infrastructure's: retry, then mask. Never score
it as reward 0.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from sandboxkit._process import ProcessResult

__all__ = [
    "AuthenticationError",
    "CapacityError",
    "CommandError",
    "CommandFailedError",
    "CommandTimeoutError",
    "ConfigurationError",
    "ImageNotFoundError",
    "ProviderUnavailableError",
    "SandboxError",
    "SandboxFileError",
    "SandboxFileNotFoundError",
    "SandboxNotFoundError",
    "SandboxStartError",
    "SandboxTerminatedError",
]


class SandboxError(Exception):
    """Base of everything raised here; `retryable` says whether the same call may succeed later."""

    retryable: bool = False

    def __init__(
        self,
        message: str,
        *,
        provider: str | None = None,
        sandbox_id: str | None = None,
    ) -> None:
        super().__init__(message)
        self.provider = provider
        self.sandbox_id = sandbox_id


class ConfigurationError(SandboxError, ValueError):
    """The caller asked for something invalid or unsupported; raised before anything is created."""


class AuthenticationError(SandboxError):
    """The backend refused our credentials, or the operating system our access to it."""


class ProviderUnavailableError(SandboxError):
    """The backend cannot be reached, throttles us, or failed; try again after `retry_after` s."""

    retryable = True

    def __init__(
        self,
        message: str,
        *,
        provider: str | None = None,
        sandbox_id: str | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message, provider=provider, sandbox_id=sandbox_id)
        self.retry_after = retry_after


class SandboxStartError(SandboxError):
    """The sandbox could not be created; nothing of it is left behind."""


class CapacityError(SandboxStartError):
    """The backend has no room, or a quota is reached."""

    retryable = True


class ImageNotFoundError(SandboxStartError):
    """The image does not exist, locally or where the backend looks for it."""


class SandboxNotFoundError(SandboxError):
    """No sandbox has this id, or it is gone already."""


class SandboxTerminatedError(SandboxError):
    """The sandbox ended while a call was using it; the message gives the reason if known.

    `out_of_memory` says that what ran in it used more than the sandbox has.
    """

    def __init__(
        self,
        message: str,
        *,
        provider: str | None = None,
        sandbox_id: str | None = None,
        out_of_memory: bool = False,
    ) -> None:
        super().__init__(message, provider=provider, sandbox_id=sandbox_id)
        self.out_of_memory = out_of_memory


class SandboxFileError(SandboxError):
    """A file operation inside the sandbox failed; `path` is the sandbox path."""

    def __init__(
        self,
        message: str,
        *,
        path: str,
        provider: str | None = None,
        sandbox_id: str | None = None,
    ) -> None:
        super().__init__(message, provider=provider, sandbox_id=sandbox_id)
        self.path = path


class SandboxFileNotFoundError(SandboxFileError, FileNotFoundError):
    """The path does not exist in the sandbox."""


class CommandError(SandboxError):
    """A command's outcome; `result` holds its argv, exit status and the output so far."""

    def __init__(
        self,
        message: str,
        *,
        result: "ProcessResult",
        provider: str | None = None,
        sandbox_id: str | None = None,
    ) -> None:
        super().__init__(message, provider=provider, sandbox_id=sandbox_id)
        self.result = result


class CommandFailedError(CommandError):
    """The command exited with a non-zero status and `check=True` was given."""


class CommandTimeoutError(CommandError, TimeoutError):
    """The command ran past its `timeout` and its whole process tree was killed."""

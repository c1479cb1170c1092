"""Every error sandboxkit raises, in one tree.

    SandboxError                         provider, sandbox_id, retryable
    ├── ConfigurationError (ValueError)  bad argument, unknown provider, unsupported option
    │   └── MissingExtraError (ImportError)  a package that is not installed
    ├── AuthenticationError              the backend refused our credentials or permissions
    ├── ProviderUnavailableError         retryable: transport, throttling (retry_after), a backend fault
    ├── SandboxStartError                the sandbox could not be created
    │   ├── CapacityError                retryable: no room, quota reached
    │   └── ImageNotFoundError
    ├── SandboxNotFoundError             no such sandbox, or it is gone
    ├── SandboxTerminatedError           the sandbox died under a command (lifetime, oom, killed)
    ├── SandboxNotCleanError             a reset found something that it could not remove
    ├── SandboxFileError                 a file operation failed
    │   └── SandboxFileNotFoundError (FileNotFoundError)
    ├── CommandStartError                the command was not started: it has no status; errno
    ├── KernelError                      a kernel that has ended, with the state of its cells
    ├── TerminalError                    a terminal whose shell has ended, or is busy
    ├── OutcomeUnknownError              the command may have run: never retried by itself
    └── CommandError                     argv and the output so far
        ├── CommandFailedError           non-zero exit, only with check=True
        └── CommandTimeoutError (TimeoutError)

The rule for training: a non-zero exit and `CommandTimeoutError` are the program's outcome and
get a reward, and a kernel or a terminal that was ended is the doing of what ran there. Every other
`SandboxError` is the infrastructure's: retry, then mask. Never score
it as reward 0.
"""

import errno as linux_errno

from sandboxkit.types import ProcessResult

__all__ = [
    "AuthenticationError",
    "CapacityError",
    "CommandError",
    "CommandFailedError",
    "CommandStartError",
    "CommandTimeoutError",
    "ConfigurationError",
    "ImageNotFoundError",
    "KernelError",
    "MissingExtraError",
    "OutcomeUnknownError",
    "ProviderUnavailableError",
    "SandboxError",
    "SandboxFileError",
    "SandboxFileNotFoundError",
    "SandboxNotCleanError",
    "SandboxNotFoundError",
    "SandboxStartError",
    "SandboxTerminatedError",
    "TerminalError",
]


_NO_ROOM = frozenset(
    {
        linux_errno.EAGAIN,
        linux_errno.ENOMEM,
        linux_errno.EMFILE,
        linux_errno.ENFILE,
        linux_errno.ENOSPC,
    }
)


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


class MissingExtraError(ConfigurationError, ImportError):
    """A package of one of our extras is not installed; the message says how to install it."""


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

    `out_of_memory` says that what ran in it used more than the sandbox has, `by_command` that
    what ran in it ended it in another way: nothing else could.
    """

    def __init__(
        self,
        message: str,
        *,
        provider: str | None = None,
        sandbox_id: str | None = None,
        out_of_memory: bool = False,
        by_command: bool = False,
    ) -> None:
        super().__init__(message, provider=provider, sandbox_id=sandbox_id)
        self.out_of_memory = out_of_memory
        self.by_command = by_command


class SandboxNotCleanError(SandboxError):
    """A reset could not prove that nothing of what ran in the sandbox is left there: delete it."""


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


class CommandStartError(SandboxError):
    """The command was not started. `errno` is Linux's number, None where the backend tells none.

    It is `retryable` where there was no room for it: too many processes, too little memory, too
    many open files. Else the caller asked for what is not there: the program, the `cwd`.
    """

    def __init__(
        self,
        message: str,
        *,
        errno: int | None,
        provider: str | None = None,
        sandbox_id: str | None = None,
    ) -> None:
        super().__init__(message, provider=provider, sandbox_id=sandbox_id)
        self.errno = errno
        self.retryable = errno in _NO_ROOM


class KernelError(SandboxError):
    """A kernel runs no cell: it has ended, or was closed. The cell was not run.

    It is the doing of what ran there, or of the caller.
    """


class TerminalError(SandboxError):
    """A terminal takes no command: its shell has ended, or a command runs.

    `ended` is which of the two. It is the doing of what ran there, or of the caller.
    """

    def __init__(self, message: str, *, ended: bool = False) -> None:
        super().__init__(message)
        self.ended = ended


class OutcomeUnknownError(SandboxError):
    """Nobody can say whether a command ran, or how it ended; the message says what is known.

    Not retryable: what it did would be done twice. Where that does no harm, as in a sandbox of
    its own, run it again in a new one. `stdout_bytes` and `stderr_bytes` are its output so far.
    """

    stdout_bytes: bytes = b""
    stderr_bytes: bytes = b""


class CommandError(SandboxError):
    """A command's outcome; `result` holds its argv, exit status and the output so far."""

    def __init__(
        self,
        message: str,
        *,
        result: ProcessResult,
        provider: str | None = None,
        sandbox_id: str | None = None,
    ) -> None:
        super().__init__(message, provider=provider, sandbox_id=sandbox_id)
        self.result = result


class CommandFailedError(CommandError):
    """The command exited with a non-zero status and `check=True` was given."""


class CommandTimeoutError(CommandError, TimeoutError):
    """The command ran past its `timeout` and its whole process tree was killed."""

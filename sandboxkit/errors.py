"""Every error sandboxkit raises, in one tree.

    SandboxError                         provider, sandbox_id, retryable
    ├── ConfigurationError (ValueError)  bad argument, unknown provider, unsupported option
    │   ├── DatasetNotFoundError         no dataset with this digest is stored
    │   ├── MissingExtraError (ImportError)  a package that is not installed
    │   └── AgentTooOldError             an older sandboxkit started the sandbox
    ├── AuthenticationError              the backend refused our credentials or permissions
    ├── ProviderUnavailableError         retryable: transport, throttling (retry_after), a backend fault
    ├── SandboxStartError                the sandbox could not be created
    │   ├── CapacityError                retryable: no room, quota reached
    │   │   └── NoRoomError              no room within start_timeout or deadline
    │   ├── ImageBuildError          a step of an image's recipe failed, or another build of it hangs
    │   └── ImageNotFoundError
    ├── SandboxNotFoundError             no such sandbox, or it is gone
    ├── SnapshotNotFoundError            no such snapshot, or it is gone
    ├── SnapshotInUseError               sandboxes run from the snapshot that is to be deleted
    ├── SandboxPausedError               the sandbox is paused: resume() it
    ├── SandboxTerminatedError           the sandbox died under a command (lifetime, oom, killed)
    ├── VolumeError                      a volume that does not exist, or that something uses
    ├── SandboxNotCleanError             a reset found something that it could not remove
    ├── SandboxFileError                 a file operation failed
    │   └── SandboxFileNotFoundError (FileNotFoundError)
    ├── CommandStartError                the command was not started: it has no status; errno
    ├── PortError                        a port inside cannot be reached or listened on; errno
    │   └── PortLimitError               too many connections are open to the sandbox
    ├── KernelError                      a kernel that has ended, with the state of its cells
    ├── TerminalError                    a terminal whose shell has ended, or is busy
    ├── ReplayMismatchError              a replay has no such call; the message shows the difference
    ├── OutcomeUnknownError              the command may have run: never retried automatically
    └── CommandError                     argv and the output so far
        ├── CommandFailedError           non-zero exit, only with check=True
        └── CommandTimeoutError (TimeoutError)

The rule for training: a non-zero exit and `CommandTimeoutError` are the program's outcome and
get a reward, and so does a kernel or a terminal that the program ended. Every other
`SandboxError` is an infrastructure failure: retry, then mask. Never score it as reward 0.
"""

import errno as linux_errno
from typing import TypedDict, Unpack

from sandboxkit.types import ProcessResult

__all__ = [
    "AgentTooOldError",
    "AuthenticationError",
    "CapacityError",
    "CommandError",
    "CommandFailedError",
    "CommandStartError",
    "CommandTimeoutError",
    "ConfigurationError",
    "DatasetNotFoundError",
    "ImageBuildError",
    "ImageNotFoundError",
    "KernelError",
    "MissingExtraError",
    "NoRoomError",
    "OutcomeUnknownError",
    "PortError",
    "PortLimitError",
    "ProviderUnavailableError",
    "ReplayMismatchError",
    "SandboxError",
    "SandboxFileError",
    "SandboxFileNotFoundError",
    "SandboxNotCleanError",
    "SandboxNotFoundError",
    "SandboxPausedError",
    "SandboxStartError",
    "SandboxTerminatedError",
    "SnapshotInUseError",
    "SnapshotNotFoundError",
    "TerminalError",
    "VolumeError",
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


class _ErrorFields(TypedDict, total=False):
    provider: str | None
    sandbox_id: str | None


class SandboxError(Exception):
    """Base class of all errors; `retryable` says whether the same call may succeed later."""

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


class DatasetNotFoundError(ConfigurationError):
    """No dataset with this digest is stored on this machine; the message says how to store one."""


class MissingExtraError(ConfigurationError, ImportError):
    """A package of an optional extra is not installed; the message says how to install it."""


class AgentTooOldError(ConfigurationError):
    """The sandbox's agent does not support a call; the message gives the remedy. Other calls work."""


class AuthenticationError(SandboxError):
    """The backend refused our credentials, or the operating system denied access to the backend."""


class ProviderUnavailableError(SandboxError):
    """The backend cannot be reached, throttles us, or failed; try again after `retry_after` s."""

    retryable = True

    def __init__(
        self, message: str, *, retry_after: float | None = None, **where: Unpack[_ErrorFields]
    ) -> None:
        super().__init__(message, **where)
        self.retry_after = retry_after


class SandboxStartError(SandboxError):
    """The sandbox could not be created; nothing is left behind."""


class CapacityError(SandboxStartError):
    """The backend has no room, or a quota is reached."""

    retryable = True


class NoRoomError(CapacityError):
    """No room became free within `start_timeout` or `deadline`. The message names the cap and which
    sandboxes use it, or says that the backend has no room."""


class ImageNotFoundError(SandboxStartError):
    """The image does not exist, locally or where the backend looks for it."""


class ImageBuildError(SandboxStartError):
    """A step of an image's recipe failed: the message has the step, the reason and its last lines. Or another
    process builds the image for too long: the message has its pid."""


class SandboxNotFoundError(SandboxError):
    """No sandbox has this id, or it is gone already."""


class SnapshotNotFoundError(SandboxError):
    """No snapshot has this id, or it was removed."""


class SnapshotInUseError(SandboxError):
    """The snapshot cannot be deleted while sandboxes run from it; the message says which or how many."""

    retryable = True


class SandboxPausedError(SandboxError):
    """The sandbox is paused, so the call was not carried out. Call `resume()` first."""


class SandboxTerminatedError(SandboxError):
    """The sandbox ended while a call was using it; the message gives the reason if known.

    `out_of_memory`: its programs used more memory than the sandbox has. `by_command`: its
    programs ended it in another way, because nothing else could have.
    """

    def __init__(
        self,
        message: str,
        *,
        out_of_memory: bool = False,
        by_command: bool = False,
        **where: Unpack[_ErrorFields],
    ) -> None:
        super().__init__(message, **where)
        self.out_of_memory = out_of_memory
        self.by_command = by_command


class SandboxNotCleanError(SandboxError):
    """A reset could not prove that the sandbox is clean: delete it."""


class VolumeError(SandboxError):
    """There is no such volume, or something uses it, so it cannot be removed; the message says which."""


class SandboxFileError(SandboxError):
    """A file operation inside the sandbox failed; `path` is the sandbox path."""

    def __init__(self, message: str, *, path: str, **where: Unpack[_ErrorFields]) -> None:
        super().__init__(message, **where)
        self.path = path


class SandboxFileNotFoundError(SandboxFileError, FileNotFoundError):
    """The path does not exist in the sandbox."""


class CommandStartError(SandboxError):
    """The command was not started. `errno` is Linux's number, None if the backend reports none.

    The error is `retryable` if the system lacked processes, memory, open files or disk space.
    Otherwise the caller asked for something that cannot be started, such as a missing program.
    """

    def __init__(self, message: str, *, errno: int | None, **where: Unpack[_ErrorFields]) -> None:
        super().__init__(message, **where)
        self.errno = errno
        self.retryable = errno in _NO_ROOM


class PortError(SandboxError):
    """A port inside the sandbox cannot be reached or listened on. `errno` is Linux's number.

    ECONNREFUSED: nothing listens there; EADDRINUSE: something already does.
    """

    def __init__(self, message: str, *, errno: int, **where: Unpack[_ErrorFields]) -> None:
        super().__init__(message, **where)
        self.errno = errno


class PortLimitError(PortError):
    """Too many connections are open to the sandbox, or to all of the session's sandboxes; close some."""

    retryable = True


class KernelError(SandboxError):
    """The cell was not run, because the kernel has ended or was closed; or the kernel was not forked.

    The cause is the code in the kernel or the caller, not the infrastructure.
    """


class TerminalError(SandboxError):
    """The terminal takes no command, because its shell has ended or a command runs.

    `ended` is True if the shell has ended. The cause is a program in the terminal or the caller,
    not the infrastructure.
    """

    def __init__(self, message: str, *, ended: bool = False) -> None:
        super().__init__(message)
        self.ended = ended


class ReplayMismatchError(SandboxError):
    """A replay has no such call at this place; the message shows what was recorded instead."""


class OutcomeUnknownError(SandboxError):
    """Whether a command ran, or how it ended, is unknown; the message says what is known.

    Not retryable: a retry could repeat the command's effects. If that does no harm, as in a
    single-use sandbox, run the command again in a new one. `stdout_bytes` and `stderr_bytes` are
    its output so far.
    """

    stdout_bytes: bytes = b""
    stderr_bytes: bytes = b""


class CommandError(SandboxError):
    """The outcome of a command; `result` holds its argv, exit status and the output so far."""

    def __init__(
        self, message: str, *, result: ProcessResult, **where: Unpack[_ErrorFields]
    ) -> None:
        super().__init__(message, **where)
        self.result = result


class CommandFailedError(CommandError):
    """The command exited with a non-zero status and `check=True` was given."""


class CommandTimeoutError(CommandError, TimeoutError):
    """The command exceeded its `timeout`, and its whole process tree was killed."""

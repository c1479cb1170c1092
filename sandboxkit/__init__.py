"""sandboxkit: one Session and Sandbox API over many sandbox backends."""

import sandboxkit._distribution
import sandboxkit.display.pages  # noqa: F401 - registers what notebooks show
from sandboxkit._operation import Operation, as_completed, wait
from sandboxkit._process import Process
from sandboxkit._sandbox import Sandbox
from sandboxkit._session import Session
from sandboxkit.errors import (
    AuthenticationError,
    CapacityError,
    CommandError,
    CommandFailedError,
    CommandStartError,
    CommandTimeoutError,
    ConfigurationError,
    ImageNotFoundError,
    KernelError,
    MissingExtraError,
    NoRoomError,
    OutcomeUnknownError,
    ProviderUnavailableError,
    SandboxError,
    SandboxFileError,
    SandboxFileNotFoundError,
    SandboxNotCleanError,
    SandboxNotFoundError,
    SandboxStartError,
    SandboxTerminatedError,
    TerminalError,
)
from sandboxkit.types import (
    CommandUsage,
    Ending,
    FileInfo,
    FileType,
    Interpreter,
    ProcessResult,
    PtySize,
    SandboxInfo,
    SandboxSpec,
    SandboxState,
    Usage,
)

__version__ = "0.1.0"

__all__ = [
    "AuthenticationError",
    "CapacityError",
    "CommandError",
    "CommandFailedError",
    "CommandStartError",
    "CommandTimeoutError",
    "CommandUsage",
    "ConfigurationError",
    "Ending",
    "FileInfo",
    "FileType",
    "ImageNotFoundError",
    "Interpreter",
    "KernelError",
    "MissingExtraError",
    "NoRoomError",
    "Operation",
    "OutcomeUnknownError",
    "Process",
    "ProcessResult",
    "ProviderUnavailableError",
    "PtySize",
    "Sandbox",
    "SandboxError",
    "SandboxFileError",
    "SandboxFileNotFoundError",
    "SandboxInfo",
    "SandboxNotCleanError",
    "SandboxNotFoundError",
    "SandboxSpec",
    "SandboxStartError",
    "SandboxState",
    "SandboxTerminatedError",
    "Session",
    "TerminalError",
    "Usage",
    "as_completed",
    "wait",
]

"""sandboxkit: one Session and Sandbox API over many sandbox backends."""

from sandboxkit._operation import Operation, as_completed, wait
from sandboxkit._process import Process, ProcessResult
from sandboxkit._sandbox import Sandbox
from sandboxkit._session import Session
from sandboxkit._shell import Shell
from sandboxkit.errors import (
    AuthenticationError,
    CapacityError,
    CommandError,
    CommandFailedError,
    CommandTimeoutError,
    ConfigurationError,
    ImageNotFoundError,
    ProviderUnavailableError,
    SandboxError,
    SandboxFileError,
    SandboxFileNotFoundError,
    SandboxNotFoundError,
    SandboxStartError,
    SandboxTerminatedError,
)
from sandboxkit.types import (
    FileInfo,
    FileType,
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
    "CommandTimeoutError",
    "ConfigurationError",
    "FileInfo",
    "FileType",
    "ImageNotFoundError",
    "Operation",
    "Process",
    "ProcessResult",
    "ProviderUnavailableError",
    "PtySize",
    "Sandbox",
    "SandboxError",
    "SandboxFileError",
    "SandboxFileNotFoundError",
    "SandboxInfo",
    "SandboxNotFoundError",
    "SandboxSpec",
    "SandboxStartError",
    "SandboxState",
    "SandboxTerminatedError",
    "Session",
    "Shell",
    "Usage",
    "as_completed",
    "wait",
]

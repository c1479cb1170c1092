"""Converts sandboxkit's errors to the Agents SDK's; `cause` is always the original error."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agents.sandbox.errors import (
    ConfigurationError,
    ErrorCode,
    ExecTransportError,
    OpName,
    WorkspaceArchiveReadError,
    WorkspaceArchiveWriteError,
    WorkspaceReadNotFoundError,
    WorkspaceStartError,
    WorkspaceStopError,
)
from agents.sandbox.errors import SandboxError as SdkError

from sandboxkit import ConfigurationError as BadArgumentError
from sandboxkit import SandboxError, SandboxFileNotFoundError, SandboxTerminatedError


def transport(command: Sequence[str | Path], error: SandboxError) -> ExecTransportError:
    """Return the error for a command that failed in the infrastructure, so its outcome is unknown."""
    return ExecTransportError(command=command, message=str(error), **_about(error))


def started(root: str, error: SandboxError) -> SdkError:
    """Return the error for a sandbox that could not be started or prepared."""
    if isinstance(error, BadArgumentError):
        return refused(str(error), "start", error)
    message = f"failed to start session: {error}"
    return WorkspaceStartError(path=Path(root), message=message, **_about(error))


def stopped(root: str, error: SandboxError) -> WorkspaceStopError:
    """Return the error for a sandbox that could not be deleted. Closing the Session tries again."""
    return WorkspaceStopError(path=Path(root), **_about(error))


def reading(path: Path, error: SandboxError) -> SdkError:
    """Return the error for a file or workspace that could not be read."""
    if isinstance(error, SandboxFileNotFoundError):
        return WorkspaceReadNotFoundError(path=path, context=_context(error), cause=error)
    return WorkspaceArchiveReadError(path=path, **_about(error))


def writing(path: Path, error: SandboxError) -> WorkspaceArchiveWriteError:
    """Return the error for a file or workspace that could not be written."""
    return WorkspaceArchiveWriteError(path=path, **_about(error))


def refused(message: str, op: OpName, cause: BaseException | None = None) -> ConfigurationError:
    """Return the error for an unsupported request of the caller."""
    return ConfigurationError(
        message=message,
        error_code=ErrorCode.SANDBOX_CONFIG_INVALID,
        op=op,
        context={"backend": "sandboxkit"},
        cause=cause,
        retryable=False,
    )


# Any: keyword arguments of different types.
def _about(error: SandboxError) -> dict[str, Any]:
    return {"context": _context(error), "cause": error, "retryable": error.retryable}


def _context(error: SandboxError) -> dict[str, object]:
    context: dict[str, object] = {
        "backend": "sandboxkit",
        "reason": type(error).__name__,
        "provider": error.provider,
        "provider_error": str(error),
    }
    if isinstance(error, SandboxTerminatedError):
        context["out_of_memory"] = error.out_of_memory
        context["by_command"] = error.by_command
    return context

"""Errors as answers: a status, and JSON with what a client needs to raise the same error."""

from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse

from sandboxkit import (
    CapacityError,
    CommandStartError,
    ConfigurationError,
    SandboxError,
    SandboxFileError,
    SandboxFileNotFoundError,
    SandboxNotFoundError,
    SandboxTerminatedError,
)
from sandboxkit.integrations.serve._admission import BusyError

RETRY_AFTER = 5
"""Seconds after which a client may try again when the infrastructure failed."""


def add_errors(app: FastAPI) -> None:
    """Answer every sandboxkit error with its status."""

    @app.exception_handler(BusyError)
    async def busy(_: Request, error: BusyError) -> Response:
        return answer_of(error)

    @app.exception_handler(SandboxError)
    async def failed(_: Request, error: SandboxError) -> Response:
        return answer_of(error)


def answer_of(error: BusyError | SandboxError) -> Response:
    """Return the answer for an error."""
    headers = {}
    if isinstance(error, BusyError):
        headers["Retry-After"] = str(error.retry_after)
    elif error.retryable:
        headers["Retry-After"] = str(RETRY_AFTER)
    return JSONResponse(described(error), _status(error), headers)


def described(error: BusyError | SandboxError) -> dict[str, Any]:  # Any: JSON
    """Return an error as JSON."""
    fields: dict[str, Any] = {"detail": str(error), "error": type(error).__name__}
    if isinstance(error, SandboxTerminatedError):
        fields |= {"out_of_memory": error.out_of_memory, "by_command": error.by_command}
    return fields


def _status(error: BusyError | SandboxError) -> int:
    if isinstance(error, BusyError):
        return 429
    if isinstance(error, SandboxNotFoundError | SandboxFileNotFoundError):
        return 404
    if isinstance(error, ConfigurationError | SandboxFileError):
        return 422
    if isinstance(error, CommandStartError) and not error.retryable:
        return 422
    if error.retryable or isinstance(error, CapacityError):
        return 503
    return 500

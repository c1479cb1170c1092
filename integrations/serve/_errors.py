"""Converts errors to responses: a status, and JSON from which a client can raise the same error."""

import json
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
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
from sandboxkit.integrations.serve._admission import RETRY_AFTER, BusyError


def add_errors(app: FastAPI) -> None:
    """Register handlers that convert every sandboxkit error to a response."""

    @app.exception_handler(RequestValidationError)
    async def invalid(_: Request, error: RequestValidationError) -> Response:
        # Without the values: JSON can write neither NaN nor half a surrogate pair.
        found = [{name: each[name] for name in ("type", "loc", "msg")} for each in error.errors()]
        return Response(
            json.dumps({"detail": found}, ensure_ascii=True), 422, media_type="application/json"
        )

    @app.exception_handler(BusyError)
    async def busy(_: Request, error: BusyError) -> Response:
        return error_response(error)

    @app.exception_handler(SandboxError)
    async def failed(_: Request, error: SandboxError) -> Response:
        return error_response(error)


def error_response(error: BusyError | SandboxError) -> Response:
    """Return the response for an error, with its status and perhaps a `Retry-After` header."""
    headers = {}
    if isinstance(error, BusyError):
        headers["Retry-After"] = str(error.retry_after)
    elif error.retryable:
        headers["Retry-After"] = str(RETRY_AFTER)
    return JSONResponse(error_json(error), _status(error), headers)


def error_json(error: BusyError | SandboxError) -> dict[str, Any]:  # Any: JSON
    """Return an error as JSON: its text, its class, and why a sandbox ended."""
    fields: dict[str, Any] = {"detail": encodable(str(error)), "error": type(error).__name__}
    if isinstance(error, SandboxTerminatedError):
        fields |= {"out_of_memory": error.out_of_memory, "by_command": error.by_command}
    return fields


def encodable(text: str) -> str:
    """Return text that UTF-8 can encode: halves of surrogate pairs are written out."""
    return text.encode(errors="backslashreplace").decode()


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

"""Reads requests and writes responses, for both of Daytona's APIs."""

import json
from collections.abc import Callable
from typing import Any

from tests.emulators._faults import Message, Receive, Send

KEY = "dtn_0123456789abcdef"

Answer = tuple[int, Any]
Violation = Callable[[str], None]


class RefusedError(Exception):
    """Raised to respond to the request with this status and message."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


def check_key(scope: Message) -> None:
    """Raise RefusedError for a request without the account's API key."""
    headers = dict(scope["headers"])
    if headers.get(b"authorization") != f"Bearer {KEY}".encode():
        raise RefusedError(401, "Invalid credentials")


async def body_of(receive: Receive) -> bytes:
    """Return the whole body of a request."""
    body: bytes = b""
    while True:
        message = await receive()
        body += bytes(message.get("body", b""))
        if not message.get("more_body"):
            return body


def read(kind: Any, body: bytes, violation: Violation) -> Any:
    """Parse a request's body as the model `kind`; report unknown fields as a violation."""
    sent = json.loads(body)
    model = kind.from_dict(sent)
    known = set(kind.model_fields) | {
        field.serialization_alias for field in kind.model_fields.values()
    }
    if unknown := sent.keys() - known:
        violation(f"{kind.__name__} has no {sorted(unknown)}")
    return model


async def answer(send: Send, status: int, content: Any) -> None:
    """Send a response with JSON content."""
    body = b"" if content is None else json.dumps(content).encode()
    raw = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": status, "headers": raw})
    await send({"type": "http.response.body", "body": body})


def refusal(error: RefusedError, path: str) -> Any:
    """Return the JSON content of Daytona's error response."""
    return {"statusCode": error.status, "message": str(error), "error": "Error", "path": path}

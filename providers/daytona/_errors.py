"""Maps Daytona's error responses to sandboxkit's errors; ANSWERS.md has the table."""

import json
import re
from collections.abc import Mapping

from sandboxkit.errors import (
    CapacityError,
    ImageNotFoundError,
    ProviderUnavailableError,
    SandboxError,
    SandboxStartError,
)
from sandboxkit.providers._hosted.ambiguous import AmbiguousError
from sandboxkit.providers._hosted.http_errors import from_status

__all__ = [
    "KEY_VARIABLE",
    "NAME",
    "ConflictError",
    "handshake_error",
    "said",
    "start_error",
    "status_error",
]

NAME = "daytona"
KEY_VARIABLE = "DAYTONA_API_KEY"
_LONGEST = 500

# Messages of a creation's 400 response, or of a sandbox that did not start.
_REFUSALS: tuple[tuple[re.Pattern[str], type[SandboxError], str], ...] = tuple(
    (re.compile(pattern, re.IGNORECASE), kind, remedy)
    for pattern, kind, remedy in (
        (
            r"total \w+ limit exceeded",
            CapacityError,
            "stop sandboxes or raise the organization's limits",
        ),
        (
            r"no available runners"
            r"|runner \S+ (is (not ready|unschedulable|draining)|does not meet availability)",
            CapacityError,
            "try again later, with less cpus or memory, or in another region (DAYTONA_TARGET)",
        ),
        (
            r"snapshot .+ is (building|pending|pulling)",
            ProviderUnavailableError,
            "try again when it is active",
        ),
        (
            r"snapshot .+ is (error|build_failed)",
            SandboxStartError,
            "see its log on the dashboard and build it again",
        ),
        (
            r"snapshot .+ is (inactive|removing)",
            ImageNotFoundError,
            "activate it on the dashboard",
        ),
        (
            r"snapshot .+ not found|snapshot .+ is not available in region|snapshot ref is not",
            ImageNotFoundError,
            "see the snapshots of this key on the dashboard",
        ),
        (
            r"timeout while (pulling|building)",
            ProviderUnavailableError,
            "try again, or use a smaller image",
        ),
        (
            r"manifest (for .+ )?(unknown|not found)|pull access denied|no such image"
            r"|repository .+ not found|image .+ not found|failed to resolve reference",
            ImageNotFoundError,
            "check its name, and that Daytona may read it",
        ),
    )
)
# The toolbox's proxy answers 400 whenever it cannot find the sandbox's machine.
_PROXY = re.compile(r"(bad request: )?failed to (get|parse) ", re.IGNORECASE)


class ConflictError(AmbiguousError):
    """The name is taken, or the sandbox is changing its state."""


def status_error(
    status: int, body: str | None, headers: Mapping[str, str], *, what: str, sandbox_id: str | None
) -> SandboxError:
    """Return the error for an HTTP status of 400 or above. Header names are in lower case."""
    message = said(body)
    text = f"daytona could not {what}: {status} {message}".rstrip()
    if status == 409:
        return ConflictError(f"{text}; try again", provider=NAME, sandbox_id=sandbox_id)
    if status == 404 and not _is_daytonas(body):
        return AmbiguousError(
            f"{text}; this is no answer of Daytona's: check DAYTONA_API_URL and any proxy",
            provider=NAME,
            sandbox_id=sandbox_id,
        )
    if status == 400:
        if _PROXY.match(message):
            return AmbiguousError(f"{text}; try again", provider=NAME, sandbox_id=sandbox_id)
        if error := _refusal(message, text, sandbox_id):
            return error
    return from_status(
        status,
        message,
        headers,
        provider=NAME,
        what=what,
        key_variable=KEY_VARIABLE,
        sandbox_id=sandbox_id,
    )


def handshake_error(
    status: int, reason: str, headers: Mapping[str, str], *, what: str, sandbox_id: str
) -> SandboxError:
    """Return the error for a refused WebSocket, whose response body the client does not expose.

    The caller has to confirm a SandboxNotFoundError with another call.
    """
    if status in (400, 409, 410):  # our request is well-formed, so the machine was not found
        return AmbiguousError(
            f"daytona could not {what}: {status} {reason}; try again",
            provider=NAME,
            sandbox_id=sandbox_id,
        )
    return from_status(
        status,
        reason,
        headers,
        provider=NAME,
        what=what,
        key_variable=KEY_VARIABLE,
        sandbox_id=sandbox_id,
    )


def start_error(reason: str, image: str, sandbox_id: str) -> SandboxError:
    """Return the error for a sandbox that ended with this reason before it had started."""
    text = f"daytona could not start a sandbox from {image}: {reason[:_LONGEST]}"
    return _refusal(reason, text, sandbox_id) or SandboxStartError(
        text, provider=NAME, sandbox_id=sandbox_id
    )


def said(body: str | None) -> str:
    """Return the message of an error response as text; for an HTML page, its title."""
    body = (body or "").strip()
    try:
        answer = json.loads(body)
    except ValueError:
        if not body.startswith("<"):
            return body[:_LONGEST]
        title = re.search(r"<title>(.*?)</title>", body, re.IGNORECASE | re.DOTALL)
        return (title[1] if title else re.sub(r"<[^>]*>", " ", body)).strip()[:_LONGEST]
    if not isinstance(answer, dict):
        return str(answer)[:_LONGEST]
    message = answer.get("message") or answer.get("error") or answer
    return (", ".join(map(str, message)) if isinstance(message, list) else str(message))[:_LONGEST]


def _is_daytonas(body: str | None) -> bool:
    """Whether an error response comes from Daytona, not from a proxy in between."""
    try:
        answer = json.loads(body or "")
    except ValueError:
        return False
    return isinstance(answer, dict) and ("message" in answer or "error" in answer)


def _refusal(message: str, text: str, sandbox_id: str | None) -> SandboxError | None:
    for pattern, kind, remedy in _REFUSALS:
        if pattern.search(message):
            return kind(f"{text}; {remedy}", provider=NAME, sandbox_id=sandbox_id)
    return None

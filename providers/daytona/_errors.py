"""What Daytona answers to a call that fails, as sandboxkit's errors; ANSWERS.md has the table."""

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
from sandboxkit.providers._hosted.http_errors import from_status
from sandboxkit.providers._hosted.unclear import UnclearError

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

# All of these are a 400 of a creation, or the reason that a sandbox gives which did not start.
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
# The proxy before a toolbox makes a 400 of whatever keeps it from finding the sandbox's machine.
_PROXY = re.compile(r"(bad request: )?failed to (get|parse) ", re.IGNORECASE)


class ConflictError(UnclearError):
    """The name is taken, or the sandbox is changing its state."""


def status_error(
    status: int, body: str | None, headers: Mapping[str, str], *, what: str, sandbox_id: str | None
) -> SandboxError:
    """The error for an HTTP status of 400 and above; names of headers are in small letters."""
    message = said(body)
    text = f"daytona could not {what}: {status} {message}".rstrip()
    if status == 409:
        return ConflictError(f"{text}; try again", provider=NAME, sandbox_id=sandbox_id)
    if status == 404 and not _is_daytonas(body):
        return UnclearError(
            f"{text}; this is no answer of Daytona's: check DAYTONA_API_URL and any proxy",
            provider=NAME,
            sandbox_id=sandbox_id,
        )
    if status == 400:
        if _PROXY.match(message):
            return UnclearError(f"{text}; try again", provider=NAME, sandbox_id=sandbox_id)
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
    """The error for a refused WebSocket, whose reason its client does not pass on.

    A SandboxNotFoundError is to be made sure of with another call.
    """
    if status in (400, 409, 410):  # nothing that we ask is malformed: the machine was not found
        return UnclearError(
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
    """The error for a sandbox that ended for this reason before it had started."""
    text = f"daytona could not start a sandbox from {image}: {reason[:_LONGEST]}"
    return _refusal(reason, text, sandbox_id) or SandboxStartError(
        text, provider=NAME, sandbox_id=sandbox_id
    )


def said(body: str | None) -> str:
    """What an answer that is an error says, as text; of a page, its title."""
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
    """Whether an error was written by Daytona, and not by what is on the way to it."""
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

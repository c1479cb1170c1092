"""Maps Daytona's error responses to sandboxkit's errors; ANSWERS.md has the table."""

import json
import re
from collections.abc import Mapping
from dataclasses import replace

from sandboxkit.errors import (
    AuthenticationError,
    CapacityError,
    ConfigurationError,
    ImageNotFoundError,
    ProviderUnavailableError,
    SandboxError,
    SandboxNotFoundError,
    SandboxStartError,
)
from sandboxkit.providers._error_rules import ErrorRule, Failure, apply_rules, rules_for
from sandboxkit.providers._hosted.ambiguous import AmbiguousError
from sandboxkit.providers._hosted.http_errors import retry_after

NAME = "daytona"
KEY_VARIABLE = "DAYTONA_API_KEY"
_LONGEST = 500
_QUOTA = "stop sandboxes or raise the account's quota"
_FULL = (
    r"(?s)^(?!.*(rate limit|too many requests|throttl))"
    r".*(maximum number|quota|concurren|limit exceeded|limit reached)"
)


class ConflictError(AmbiguousError):
    """The name is taken, or the sandbox is changing its state."""


_FOREIGN = "foreign"
"""The code of a response of a proxy in between."""
_REFUSED = (400, "end")
"""A creation's status 400; "end" is the code of a sandbox that did not start."""
_CREATION = rules_for(
    _REFUSED,
    (
        CapacityError,
        "stop sandboxes or raise the organization's limits",
        r"total \w+ limit exceeded",
    ),
    (
        CapacityError,
        "try again later, with fewer cpus or less memory, or in another region (DAYTONA_TARGET)",
        r"no available runners"
        r"|runner \S+ (is (not ready|unschedulable|draining)|does not meet availability)",
    ),
    (
        ProviderUnavailableError,
        "try again when it is active",
        r"snapshot .+ is (building|pending|pulling)",
    ),
    (
        SandboxStartError,
        "see its log on the dashboard and build it again",
        r"snapshot .+ is (error|build_failed)",
    ),
    (ImageNotFoundError, "activate it on the dashboard", r"snapshot .+ is (inactive|removing)"),
    (
        ImageNotFoundError,
        "see the snapshots of this key on the dashboard",
        r"snapshot .+ not found|snapshot .+ is not available in region|snapshot ref is not",
    ),
    (
        ProviderUnavailableError,
        "try again, or use a smaller image",
        r"timeout while (pulling|building)",
    ),
    (
        ImageNotFoundError,
        "check its name, and that Daytona may read it",
        r"manifest (for .+ )?(unknown|not found)|pull access denied|no such image"
        r"|repository .+ not found|image .+ not found|failed to resolve reference",
    ),
)
_HTTP = (
    ErrorRule((402,), CapacityError, _QUOTA),
    ErrorRule((403, 429), CapacityError, _QUOTA, _FULL),
    ErrorRule((401,), AuthenticationError, f"check {KEY_VARIABLE}"),
    ErrorRule((403,), AuthenticationError, f"the key in {KEY_VARIABLE} has no permission for it"),
    ErrorRule((404,), SandboxNotFoundError, needed={"sandbox"}),
    ErrorRule((429,), ProviderUnavailableError, "slow down"),
    ErrorRule((408, 409, 425), AmbiguousError, "try again"),
    # With 503 Daytona reports that nothing was done.
    ErrorRule((503,), ProviderUnavailableError, "try again later"),
    ErrorRule(range(500, 600), AmbiguousError, "try again"),
    ErrorRule((), ConfigurationError),
)
_STATUS = (
    ErrorRule((409,), ConflictError, "try again"),
    ErrorRule(
        (404,),
        AmbiguousError,
        "this answer is not Daytona's: check DAYTONA_API_URL and any proxy",
        needed={_FOREIGN},
    ),
    # The toolbox's proxy answers 400 whenever it cannot find the sandbox's machine.
    ErrorRule((400,), AmbiguousError, "try again", "^(bad request: )?failed to (get|parse) "),
    ErrorRule(
        (403,),
        CapacityError,
        "remove snapshots, for example with `sandboxkit cleanup --snapshots -p daytona`, or raise the quota",
        "snapshot quota exceeded",
    ),
    # Another snapshot of it is being made, or its state is changing.
    ErrorRule(
        (400,),
        ProviderUnavailableError,
        "try again",
        "must be in started or stopped state to create a snapshot",
    ),
    *_CREATION,
    *_HTTP,
)
_HANDSHAKE = (
    ErrorRule(
        range(400),
        AmbiguousError,
        "the server did not open a WebSocket: check DAYTONA_API_URL and any proxy",
    ),
    # Our request is well-formed, so the machine was not found.
    ErrorRule((400, 409, 410), AmbiguousError, "try again"),
    *_HTTP,
)


def status_error(
    status: int, body: str | None, headers: Mapping[str, str], *, what: str, sandbox_id: str | None
) -> SandboxError:
    """Return the error for an HTTP status of 400 or above. Header names are in lower case."""
    message, is_daytonas = _message_of(body)
    failure = _failure(status, message, headers, what, sandbox_id)
    codes = failure.codes if is_daytonas else failure.codes | {_FOREIGN}
    return apply_rules(replace(failure, codes=codes), _STATUS)


def handshake_error(
    status: int, reason: str, headers: Mapping[str, str], *, what: str, sandbox_id: str | None
) -> SandboxError:
    """Return the error for a refused WebSocket, whose response body the client does not expose.

    The caller has to confirm a SandboxNotFoundError with another call.
    """
    return apply_rules(_failure(status, reason, headers, what, sandbox_id), _HANDSHAKE)


def start_error(reason: str, image: str, sandbox_id: str) -> SandboxError:
    """Return the error for a sandbox that ended with this reason before it had started."""
    text = f"daytona could not start a sandbox from {image}: {reason[:_LONGEST]}"
    failure = Failure(text, reason, {"end"}, sandbox_id)
    return apply_rules(failure, (*_CREATION, ErrorRule((), SandboxStartError)))


def _failure(
    status: int, message: str, headers: Mapping[str, str], what: str, sandbox_id: str | None
) -> Failure:
    text = f"daytona could not {what}: {status} {message}".rstrip()
    return Failure(text, message, {status}, sandbox_id, retry_after(headers))


def _message_of(body: str | None) -> tuple[str, bool]:
    """Return the message of an error response as text, and whether Daytona sent it, not a proxy in between.

    The message of an HTML page is its title.
    """
    text = (body or "").strip()
    try:
        answer = json.loads(text)
    except ValueError:
        if text.startswith("<"):
            title = re.search(r"<title>(.*?)</title>", text, re.IGNORECASE | re.DOTALL)
            text = (title[1] if title else re.sub(r"<[^>]*>", " ", text)).strip()
        return text[:_LONGEST], False
    if not isinstance(answer, dict):
        return str(answer)[:_LONGEST], False
    message = answer.get("message") or answer.get("error") or answer
    text = ", ".join(map(str, message)) if isinstance(message, list) else str(message)
    return text[:_LONGEST], "message" in answer or "error" in answer

"""Maps E2B's error responses to sandboxkit's errors; ANSWERS.md has the table."""

import re
from collections.abc import Mapping
from json import loads

from connectrpc.code import Code
from connectrpc.errors import ConnectError

from sandboxkit.errors import (
    AuthenticationError,
    CapacityError,
    ConfigurationError,
    ImageNotFoundError,
    ProviderUnavailableError,
    SandboxError,
    SandboxNotFoundError,
)
from sandboxkit.providers._hosted.ambiguous import AmbiguousError
from sandboxkit.providers._hosted.http_errors import retry_after

__all__ = ["KEY_VARIABLE", "NAME", "NoRouteError", "gone", "of_api", "of_daemon", "of_proxy"]

NAME = "e2b"
KEY_VARIABLE = "E2B_API_KEY"


class NoRouteError(ConfigurationError):
    """The server lacks the route: it runs an older version of E2B, or is not an E2B server."""


_SHOWN = 500
"""How many characters of a response an error message quotes."""
_TEMPLATE = re.compile(r"(Invalid template reference|template '.*'|tag '.*' does not exist)", re.S)
_QUOTA = "maximum number of concurrent"
_NOT_STARTED = "error starting process"
_NO_ROOM = ("sandbox_capacity_unavailable", "sandbox_no_compatible_node")


def of_api(
    status: int,
    headers: Mapping[str, str],
    body: bytes,
    *,
    what: str,
    template: str | None = None,
    sandbox_id: str | None = None,
) -> SandboxError:
    """Return the error for an error response of the control API.

    `template` is the template of a creation, `sandbox_id` the sandbox that the call concerned. The
    error is an AmbiguousError if E2B may have carried out the call.
    """
    message, reason = _message(body)
    said = _error_text(what, status, message if message is not None else _shown(body))
    refused = _refused(status, said, sandbox_id)
    if refused is not None:
        return refused
    if status == 404 and message is not None and sandbox_id is not None:
        return gone(sandbox_id)
    of_template = template is not None and status in (400, 404)
    if of_template and message is not None and _TEMPLATE.match(message):
        return ImageNotFoundError(
            f"{said}; `e2b template list` shows those of this key", provider=NAME
        )
    if status == 429:
        return _throttled(said, headers, message or "", sandbox_id)
    if status in (404, 405) and template is not None and message is not None:
        return NoRouteError(f"{said}; check E2B_API_URL and any proxy", provider=NAME)
    if status == 503 and reason in _NO_ROOM:
        return CapacityError(f"{said}; try again later", provider=NAME)
    if message is not None and 400 <= status < 500 and status not in (408, 409, 425):
        return ConfigurationError(said, provider=NAME, sandbox_id=sandbox_id)
    if status < 500 and status not in (408, 425):  # the sender cannot have carried out the call
        return ProviderUnavailableError(
            f"{said}; check E2B_API_URL and any proxy" if message is None else f"{said}; try again",
            provider=NAME,
            sandbox_id=sandbox_id,
            retry_after=_seconds(headers),
        )
    kind = ProviderUnavailableError if status == 503 else AmbiguousError
    return kind(
        f"{said}; try again",
        provider=NAME,
        sandbox_id=sandbox_id,
        retry_after=_seconds(headers),
    )


def of_proxy(
    status: int, headers: Mapping[str, str], body: bytes, *, what: str, sandbox_id: str
) -> SandboxError:
    """Return the error for a response of a proxy in front of a sandbox's daemon."""
    message, _ = _message(body)
    said = _error_text(what, status, message if message is not None else _shown(body))
    refused = _refused(status, said, sandbox_id)
    if refused is not None:
        return refused
    if status == 502 and message is not None and "sandbox was not found" in message:
        return gone(sandbox_id)
    if status == 429:
        return _throttled(said, headers, "", sandbox_id)
    return ProviderUnavailableError(
        f"{said}; check E2B_DOMAIN, E2B_SANDBOX_URL and any proxy",
        provider=NAME,
        sandbox_id=sandbox_id,
        retry_after=_seconds(headers),
    )


def of_daemon(error: ConnectError, *, what: str, sandbox_id: str) -> SandboxError:
    """Return the error for an error of a sandbox's daemon, or for its missing response."""
    message = _shown(error.message.encode(errors="replace"))
    if error.message.startswith(_NOT_STARTED):  # followed by all of the command line
        message = f"{_NOT_STARTED}: {_shown(error.message.rsplit(': ', 1)[-1].encode())}"
    said = f"e2b could not {what}: {message or error.code.value}"
    match error.code:
        case Code.UNAUTHENTICATED if "user" in message.lower():
            return ConfigurationError(
                f"{said}; sandboxkit needs that user in the template",
                provider=NAME,
                sandbox_id=sandbox_id,
            )
        case Code.UNAUTHENTICATED | Code.PERMISSION_DENIED:
            return AuthenticationError(
                f"{said}; check {KEY_VARIABLE}", provider=NAME, sandbox_id=sandbox_id
            )
        case Code.UNAVAILABLE if "sandbox was not found" in message:
            return gone(sandbox_id)
    reached = not isinstance(error.__cause__, ConnectionError)
    remedy = "try again" if reached else "check the network, E2B_DOMAIN and E2B_SANDBOX_URL"
    return ProviderUnavailableError(f"{said}; {remedy}", provider=NAME, sandbox_id=sandbox_id)


def gone(sandbox_id: str) -> SandboxNotFoundError:
    """Return the error for a sandbox that has ended."""
    return SandboxNotFoundError(
        f"no sandbox {sandbox_id!r}; it may have ended", provider=NAME, sandbox_id=sandbox_id
    )


def _refused(status: int, said: str, sandbox_id: str | None) -> SandboxError | None:
    if status == 401:
        return AuthenticationError(
            f"{said}; check {KEY_VARIABLE}", provider=NAME, sandbox_id=sandbox_id
        )
    if status == 403:
        return AuthenticationError(
            f"{said}; the key in {KEY_VARIABLE} has no permission for it",
            provider=NAME,
            sandbox_id=sandbox_id,
        )
    if status == 402:
        return CapacityError(f"{said}; see the account's billing", provider=NAME)
    return None


def _throttled(
    said: str, headers: Mapping[str, str], message: str, sandbox_id: str | None
) -> SandboxError:
    if _QUOTA in message:
        return CapacityError(f"{said}; stop sandboxes or use fewer at a time", provider=NAME)
    return ProviderUnavailableError(
        f"{said}; slow down",
        provider=NAME,
        sandbox_id=sandbox_id,
        retry_after=_seconds(headers),
    )


def _seconds(headers: Mapping[str, str]) -> float | None:
    """Return the delay (s) that Retry-After asks for, or until E2B's rate limit resets."""
    asked = retry_after(headers)
    if asked is not None:
        return asked
    reset = headers.get("ratelimit-reset", "").strip()
    return float(reset) if reset.isascii() and reset.isdecimal() and len(reset) < 7 else None


def _error_text(what: str, status: int, message: str) -> str:
    return f"e2b could not {what}: {status} {message}".rstrip()


def _shown(data: bytes) -> str:
    return data[: 4 * _SHOWN].decode(errors="replace").strip()[:_SHOWN]


def _message(body: bytes) -> tuple[str | None, str]:
    """Return E2B's message and error code; the message is None if the response is not E2B's."""
    try:
        said = loads(body)
    except (ValueError, RecursionError):
        return None, ""
    if not isinstance(said, dict) or not isinstance(said.get("message"), str):
        return None, ""
    return said["message"][:_SHOWN], str(said.get("error_code", ""))

"""What E2B's answers that are errors mean, as sandboxkit's errors. The table is in ANSWERS.md."""

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
from sandboxkit.providers._hosted.http_errors import retry_after
from sandboxkit.providers._hosted.unclear import UnclearError

__all__ = ["KEY_VARIABLE", "NAME", "gone", "of_api", "of_daemon", "of_proxy"]

NAME = "e2b"
KEY_VARIABLE = "E2B_API_KEY"

_SHOWN = 500
"""Characters of an answer that a message repeats."""
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
    """The error for an answer of the control API that is no success.

    `template` is what a sandbox was to be made of, `sandbox_id` what the call was about. It is an
    UnclearError where the call may have been carried out.
    """
    message, reason = _message(body)
    said = _said(what, status, message if message is not None else _shown(body))
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
    if status == 503 and reason in _NO_ROOM:
        return CapacityError(f"{said}; try again later", provider=NAME)
    if message is not None and 400 <= status < 500 and status not in (408, 409, 425):
        return ConfigurationError(said, provider=NAME, sandbox_id=sandbox_id)
    if status < 500 and status not in (408, 425):  # nothing that would have done it has answered
        return ProviderUnavailableError(
            f"{said}; check E2B_API_URL and any proxy" if message is None else f"{said}; try again",
            provider=NAME,
            sandbox_id=sandbox_id,
            retry_after=_seconds(headers),
        )
    kind = ProviderUnavailableError if status == 503 else UnclearError
    return kind(
        f"{said}; try again",
        provider=NAME,
        sandbox_id=sandbox_id,
        retry_after=_seconds(headers),
    )


def of_proxy(
    status: int, headers: Mapping[str, str], body: bytes, *, what: str, sandbox_id: str
) -> SandboxError:
    """The error for an answer of what stands before a sandbox's daemon."""
    message, _ = _message(body)
    said = _said(what, status, message if message is not None else _shown(body))
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
    """The error for one that a sandbox's daemon tells, or for no answer that it gave."""
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
    """The error for a sandbox that has ended."""
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
    """How long to wait: as asked for, or until E2B's window of calls begins anew."""
    asked = retry_after(headers)
    if asked is not None:
        return asked
    reset = headers.get("ratelimit-reset", "").strip()
    return float(reset) if reset.isascii() and reset.isdecimal() and len(reset) < 7 else None


def _said(what: str, status: int, message: str) -> str:
    return f"e2b could not {what}: {status} {message}".rstrip()


def _shown(data: bytes) -> str:
    return data[: 4 * _SHOWN].decode(errors="replace").strip()[:_SHOWN]


def _message(body: bytes) -> tuple[str | None, str]:
    """What E2B says and its code for it; None where another than E2B answered."""
    try:
        said = loads(body)
    except (ValueError, RecursionError):
        return None, ""
    if not isinstance(said, dict) or not isinstance(said.get("message"), str):
        return None, ""
    return said["message"][:_SHOWN], str(said.get("error_code", ""))

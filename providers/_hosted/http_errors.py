"""Maps HTTP error responses to sandboxkit's errors, as far as all vendors agree."""

import math
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from sandboxkit.errors import (
    AuthenticationError,
    CapacityError,
    ConfigurationError,
    ProviderUnavailableError,
    SandboxError,
    SandboxNotFoundError,
)
from sandboxkit.providers._hosted.ambiguous import AmbiguousError

__all__ = ["from_status", "retry_after"]

_QUOTA = ("maximum number", "quota", "concurren", "limit exceeded", "limit reached")
_RATE = ("rate limit", "too many requests", "throttl")


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Return the delay (s) that the Retry-After headers ask for, or None.

    A date is compared with the server's own clock. Some rate limiters append their name, as in
    `retry-after-sandbox-create`; the longest delay is returned. `headers` has lower-case names.
    """
    asked = (
        _seconds(text.strip(), headers)
        for name, text in headers.items()
        if name == "retry-after" or name.startswith("retry-after-")
    )
    return max((seconds for seconds in asked if seconds is not None), default=None)


def _seconds(text: str, headers: Mapping[str, str]) -> float | None:
    try:
        seconds = float(text)
        return max(0.0, seconds) if math.isfinite(seconds) else None
    except ValueError:
        pass
    until = _moment(text)
    if until is None:
        return None
    now = _moment(headers.get("date", "")) or datetime.now(UTC)
    return max(0.0, (until - now).total_seconds())


def _moment(text: str) -> datetime | None:
    try:
        moment = parsedate_to_datetime(text)
    except ValueError:
        return None
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


def from_status(
    status: int,
    message: str,
    headers: Mapping[str, str],
    *,
    provider: str,
    what: str,
    key_variable: str,
    sandbox_id: str | None = None,
) -> SandboxError:
    """Return the error for an HTTP status of 400 or above; `message` is the vendor's.

    A 5xx gives an AmbiguousError, except for 503: with it vendors report that nothing was done.
    """
    said = f"{provider} could not {what}: {status} {message[:500].strip()}".rstrip()
    words = message.lower()
    full = any(word in words for word in _QUOTA) and not any(word in words for word in _RATE)
    if status == 402 or (status in (403, 429) and full):
        return CapacityError(
            f"{said}; stop sandboxes or raise the account's quota", provider=provider
        )
    if status == 401:
        return AuthenticationError(f"{said}; check {key_variable}", provider=provider)
    if status == 403:
        return AuthenticationError(
            f"{said}; the key in {key_variable} has no permission for it", provider=provider
        )
    if status == 404 and sandbox_id is not None:
        return SandboxNotFoundError(
            f"no sandbox {sandbox_id!r}; it may have ended",
            provider=provider,
            sandbox_id=sandbox_id,
        )
    if status == 429:
        return ProviderUnavailableError(
            f"{said}; slow down",
            provider=provider,
            sandbox_id=sandbox_id,
            retry_after=retry_after(headers),
        )
    if status in (408, 409, 425) or (status >= 500 and status != 503):
        return AmbiguousError(
            f"{said}; try again",
            provider=provider,
            sandbox_id=sandbox_id,
            retry_after=retry_after(headers),
        )
    if status == 503:
        return ProviderUnavailableError(
            f"{said}; try again later",
            provider=provider,
            sandbox_id=sandbox_id,
            retry_after=retry_after(headers),
        )
    return ConfigurationError(said, provider=provider, sandbox_id=sandbox_id)

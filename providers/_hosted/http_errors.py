"""HTTP answers that are errors, as sandboxkit's errors: what all vendors have in common."""

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
from sandboxkit.providers._hosted.deadline import OutcomeUnknownError

__all__ = ["from_status", "retry_after"]

_QUOTA = ("maximum number", "quota", "concurren", "limit exceeded", "limit reached")


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds that a Retry-After header asks for; a date counts from the server's own clock."""
    text = headers.get("retry-after", "").strip()
    if not text:
        return None
    try:
        return max(0.0, float(text))
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
    """The error for an HTTP status of 400 and above; `message` is what the vendor said.

    A 5xx is an OutcomeUnknownError but for 503, with which vendors say that nothing was done.
    """
    said = f"{provider} could not {what}: {status} {message[:500].strip()}".rstrip()
    if status == 402 or (status in (403, 429) and any(word in message.lower() for word in _QUOTA)):
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
        return OutcomeUnknownError(
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

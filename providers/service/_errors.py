"""Turns the service's answers into the errors that they describe."""

import json

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
from sandboxkit.provider import no_sandbox

NAME = "service"

_KINDS: dict[str, type[SandboxError]] = {
    "AuthenticationError": AuthenticationError,
    "BusyError": CapacityError,
    "CapacityError": CapacityError,
    "ConfigurationError": ConfigurationError,
    "ImageNotFoundError": ImageNotFoundError,
    "NoRoomError": CapacityError,
    "ProviderUnavailableError": ProviderUnavailableError,
    "SandboxNotFoundError": SandboxNotFoundError,
    "SandboxStartError": SandboxStartError,
}
_BY_STATUS: dict[int, type[SandboxError]] = {
    401: AuthenticationError,
    403: AuthenticationError,
    413: ConfigurationError,
    422: ConfigurationError,
    429: CapacityError,
}
"""The error for an answer that does not name one."""


class RefusalError(Exception):
    """An HTTP answer of status 300 or above."""

    def __init__(self, status: int, text: str, retry_after: float | None) -> None:
        super().__init__(f"status {status}: {text[:500]}")
        self.status, self.text, self.retry_after = status, text, retry_after


def error_of(refusal: RefusalError, what: str, sandbox_id: str | None) -> SandboxError:
    """Return the error for an answer to the request to do `what`."""
    try:
        fields = json.loads(refusal.text)
        detail = fields["detail"]
    except (ValueError, LookupError, TypeError):
        fields, detail = {}, refusal.text[:500]
    text = f"the service could not {what}: {detail} (status {refusal.status})"
    kind = _KINDS.get(fields.get("error", "")) or _BY_STATUS.get(refusal.status)
    if refusal.status == 404 and sandbox_id is not None:
        return no_sandbox(sandbox_id)
    if kind is None and refusal.status < 500:
        text += "; check that SANDBOXKIT_SERVICE_URL is the address of `sandboxkit serve`"
        kind = ConfigurationError
    if kind is AuthenticationError:
        text += "; set SANDBOXKIT_SERVICE_TOKEN to a token of the service"
    if kind is None or kind is ProviderUnavailableError:
        return ProviderUnavailableError(text, retry_after=refusal.retry_after)
    return kind(text)

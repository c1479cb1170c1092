"""What Modal answers when it does not do what was asked, and what that is for us."""

from dataclasses import dataclass

from sandboxkit.errors import (
    AuthenticationError,
    CapacityError,
    ConfigurationError,
    ImageNotFoundError,
    OutcomeUnknownError,
    ProviderUnavailableError,
    SandboxError,
    SandboxNotFoundError,
    SandboxStartError,
)
from tests.emulators._answers import Row

__all__ = ["ANSWERS", "REQUESTS", "Answer", "rows"]

REQUESTS = {
    "create": "SandboxCreateV2",
    "list": "SandboxListV2",
    "get": "SandboxTagsGetV2",
    "agent": "TaskExecStart",
    "way": "TaskExecStart",
    "order": "TaskExecStdinWrite",
}
"""The request of each call."""
REPEATABLE = ("list", "get")


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer in the place of a success."""

    calls: tuple[str, ...]
    status: str | int
    """Of gRPC; a number is that of HTTP, where something in between answers."""
    message: str
    raised: type[SandboxError] | None
    retry_after: float | None = None

    @property
    def row(self) -> Row:
        """Its line in the table."""
        policy = (
            "" if self.retry_after is None else f" with a retry policy of {self.retry_after:g} s"
        )
        return Row(
            self.calls, f"{self.status}{policy}: `{self.message}`", self.raised, self.retry_after
        )


_ALL = ("create", *REPEATABLE)
_PROGRAMS = ("agent", "way")
_PAGE = "<html>Bad Gateway</html>"

ANSWERS = (
    Answer((*_ALL, *_PROGRAMS), "UNAUTHENTICATED", "Token is disabled", AuthenticationError),
    Answer((*_ALL, *_PROGRAMS), "PERMISSION_DENIED", "read only", AuthenticationError),
    Answer(("create",), "RESOURCE_EXHAUSTED", "limit of 100 sandboxes", CapacityError),
    Answer((*REPEATABLE, *_PROGRAMS), "RESOURCE_EXHAUSTED", "rate limit", ProviderUnavailableError),
    Answer(REPEATABLE, "RESOURCE_EXHAUSTED", "rate limit", ProviderUnavailableError, 7.0),
    Answer(("create",), "RESOURCE_EXHAUSTED", "slow down", ProviderUnavailableError, 7.0),
    Answer(("create",), "INVALID_ARGUMENT", "Invalid region: 'x'", ConfigurationError),
    Answer(("create",), "NOT_FOUND", "Image 'im-x' not found", ImageNotFoundError),
    Answer(("create",), "NOT_FOUND", "Secret 'st-x' not found", SandboxStartError),
    Answer(("get",), "NOT_FOUND", "Sandbox not found", SandboxNotFoundError),
    Answer(("list",), "NOT_FOUND", "App 'ap-x' not found", ConfigurationError),
    Answer(("agent",), "NOT_FOUND", "Task 'ta-x' not found", SandboxStartError),
    Answer(("way",), "NOT_FOUND", "Task 'ta-x' not found", SandboxNotFoundError),
    Answer(("get",), "FAILED_PRECONDITION", "already finished", SandboxNotFoundError),
    Answer(("get",), "ABORTED", "transaction conflict", ProviderUnavailableError),
    Answer((*_ALL, *_PROGRAMS), "UNAVAILABLE", "no healthy upstream", ProviderUnavailableError),
    Answer((*_ALL, *_PROGRAMS), "INTERNAL", '{"error": "database"}', ProviderUnavailableError),
    Answer(_ALL, "UNKNOWN", "upstream says <html>", ProviderUnavailableError),
    Answer(_ALL, "DEADLINE_EXCEEDED", "too slow", ProviderUnavailableError),
    Answer((*_ALL, *_PROGRAMS), 502, _PAGE, ProviderUnavailableError),
    Answer(("order",), "RESOURCE_EXHAUSTED", "rate limit", OutcomeUnknownError),
    Answer(("order",), "INTERNAL", "worker lost", OutcomeUnknownError),
    Answer(("order",), 502, _PAGE, OutcomeUnknownError),
)


def rows() -> list[Row]:
    """All lines of the table."""
    return [answer.row for answer in ANSWERS]

"""What Daytona answers when it does not do what was asked, as recorded, and what that is for us."""

import json
from dataclasses import dataclass, field

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
from tests.emulators._answers import Row

__all__ = ["ANSWERS", "ENDS", "REQUESTS", "Answer", "End", "rows"]

JSON = "application/json; charset=utf-8"
HTML = "text/html"

REQUESTS = {
    "create": "POST /api/sandbox",
    "list": "GET /api/sandbox",
    "get": "GET /api/sandbox/",
    "stop": "DELETE /api/sandbox/",
    "renew": "/ttl/",
    "terminal": "WS /toolbox",
}
"""The request of each call; `terminal` is the way to the agent."""
API = ("create", "list", "get", "stop", "renew")


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer in the place of a success."""

    calls: tuple[str, ...]
    status: int
    body: str
    raised: type[SandboxError] | None
    headers: dict[str, str] = field(default_factory=dict)
    retry_after: float | None = None

    @property
    def row(self) -> Row:
        """Its line in the table."""
        headers = "".join(f" `{name}: {value}`" for name, value in self.headers.items())
        body = f"`{self.shown}`" if self.body else "nothing"
        return Row(self.calls, f"{self.status}{headers}: {body}", self.raised, self.retry_after)

    @property
    def shown(self) -> str:
        """The body without what is the same in all."""
        try:
            answer = json.loads(self.body)
            reply = answer.items()
        except (ValueError, AttributeError):
            return self.body
        kept = {k: v for k, v in reply if k not in ("path", "timestamp", "statusCode")}
        return json.dumps(kept)


@dataclass(frozen=True, slots=True)
class End:
    """A sandbox that is made, and does not start."""

    state: str
    fields: dict[str, object]
    """Of the sandbox, as Daytona describes it."""
    raised: type[SandboxError]

    @property
    def row(self) -> Row:
        """Its line in the table."""
        return Row(("create",), f"200, then `{self.state}` {json.dumps(self.fields)}", self.raised)


def api(status: int, message: str, error: str = "Bad Request") -> str:
    """As the API says it."""
    answer = {"path": "/api/sandbox", "timestamp": "2026-11-20T10:00:00.000Z"}
    return json.dumps({**answer, "statusCode": status, "error": error, "message": message})


def toolbox(status: int, message: str, code: str = "BAD_REQUEST") -> str:
    """As the proxy before a sandbox says it, and the daemon in it."""
    answer = {"statusCode": status, "message": message, "code": code}
    return json.dumps({**answer, "timestamp": "2026-11-20T10:00:00Z", "path": "/files"})


def throttled(name: str, seconds: int) -> dict[str, str]:
    """The headers of a named throttler."""
    return {f"Retry-After-{name}": str(seconds), f"X-RateLimit-Remaining-{name}": "0"}


LIMIT = "Total {} limit exceeded. Maximum allowed: {}.\nTo increase concurrency limits, upgrade"
TOO_MANY = "ThrottlerException: Too Many Requests"
PAGE = "<html><head><title>502 Bad Gateway</title></head><body>nginx</body></html>"

ANSWERS = (
    Answer(API, 401, api(401, "Invalid credentials", "Unauthorized"), AuthenticationError),
    Answer(("terminal",), 401, "", AuthenticationError),
    Answer(API, 403, api(403, "Forbidden resource", "Forbidden"), AuthenticationError),
    Answer(
        ("create",),
        403,
        api(403, "Organization is suspended: Payment method required", "Forbidden"),
        AuthenticationError,
    ),
    # Not enough of something.
    Answer(("create",), 400, api(400, LIMIT.format("CPU", 10)), CapacityError),
    Answer(("create",), 400, api(400, LIMIT.format("memory", "10GiB")), CapacityError),
    Answer(("create",), 400, api(400, LIMIT.format("disk", "30GiB")), CapacityError),
    Answer(("create",), 400, api(400, "No available runners"), CapacityError),
    Answer(("create",), 400, api(400, "No available runners with GPU type: H100."), CapacityError),
    Answer(("create",), 400, api(400, "Runner r1 is draining"), CapacityError),
    # What is asked for.
    Answer(
        ("create",),
        400,
        api(400, "Snapshot s1 not found. Did you add it through the Daytona Dashboard?"),
        ImageNotFoundError,
    ),
    Answer(
        ("create",), 400, api(400, "Snapshot s1 is not available in region eu"), ImageNotFoundError
    ),
    Answer(("create",), 400, api(400, "Snapshot s1 is inactive"), ImageNotFoundError),
    Answer(("create",), 400, api(400, "Snapshot s1 is building"), ProviderUnavailableError),
    Answer(("create",), 400, api(400, "Snapshot s1 is pulling"), ProviderUnavailableError),
    Answer(("create",), 400, api(400, "Snapshot s1 is error"), SandboxStartError),
    Answer(("create",), 400, api(400, "Snapshot s1 is build_failed"), SandboxStartError),
    Answer(
        ("create",),
        400,
        api(400, "CPU request 64 exceeds maximum allowed per sandbox (4)."),
        ConfigurationError,
    ),
    Answer(API, 413, PAGE.replace("502 Bad Gateway", "413 Too Large"), ConfigurationError),
    Answer(
        ("get", "renew"),
        404,
        api(404, "Sandbox with ID or name x not found", "Not Found"),
        SandboxNotFoundError,
    ),
    Answer(API, 404, "<html>default backend</html>", ProviderUnavailableError),
    Answer(("list",), 409, api(409, "Conflict", "Conflict"), ProviderUnavailableError),
    Answer(("stop",), 409, api(409, "Sandbox state change in progress", "Conflict"), None),
    # Too often.
    Answer(
        ("create",),
        429,
        api(429, TOO_MANY, "Too Many Requests"),
        ProviderUnavailableError,
        throttled("sandbox-create", 7),
        7.0,
    ),
    Answer(
        ("list", "get", "stop", "renew"),
        429,
        api(429, TOO_MANY, "Too Many Requests"),
        ProviderUnavailableError,
        {**throttled("authenticated", 3), **throttled("sandbox-lifecycle", 11)},
        11.0,
    ),
    Answer(API, 429, "slow down", ProviderUnavailableError, {"Retry-After": "5"}, 5.0),
    Answer(("terminal",), 429, "", ProviderUnavailableError, {"Retry-After": "5"}, 5.0),
    # Daytona's own faults, and those of what is before it.
    Answer(("list", "get", "stop", "renew"), 500, "{}", ProviderUnavailableError),
    Answer(("list", "get", "stop", "renew"), 500, "", ProviderUnavailableError),
    Answer(("list", "get", "stop", "renew"), 502, PAGE, ProviderUnavailableError),
    Answer(("list", "get", "stop", "renew"), 504, "null", ProviderUnavailableError),
    Answer(("create",), 500, "{}", ProviderUnavailableError),
    Answer(
        ("create",),
        500,
        api(500, "An unexpected error occurred.", "Internal Server Error"),
        ProviderUnavailableError,
    ),
    Answer(API, 503, "upstream connect error", ProviderUnavailableError),
    Answer(("list", "get"), 200, "<html>Please log in</html>", ProviderUnavailableError),
    # The way to a sandbox.
    Answer(("terminal",), 404, "", ProviderUnavailableError),
    Answer(
        ("terminal",),
        400,
        toolbox(400, "bad request: failed to get runner info: i/o timeout"),
        ProviderUnavailableError,
    ),
    Answer(("terminal",), 502, PAGE, ProviderUnavailableError),
    Answer(("terminal",), 500, "", ProviderUnavailableError),
)

ENDS = (
    End(
        "destroyed",
        {"queueTimedOutAt": "2026-11-20T10:00:00.000Z", "queueTimeout": 9},
        CapacityError,
    ),
    End("destroyed", {}, SandboxStartError),
    End("error", {"errorReason": "No available runners"}, CapacityError),
    End("error", {"errorReason": "Failed to create sandbox"}, SandboxStartError),
    End(
        "error",
        {"errorReason": "Timeout while pulling snapshot to runner"},
        ProviderUnavailableError,
    ),
    End(
        "build_failed",
        {"errorReason": "failed to pull image: manifest unknown"},
        ImageNotFoundError,
    ),
)


def rows() -> list[Row]:
    """All lines of the table."""
    return [each.row for each in (*ANSWERS, *ENDS)]

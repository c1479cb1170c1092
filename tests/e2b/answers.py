"""What E2B answers when it does not do what was asked, as recorded, and what that is for us."""

import json
from dataclasses import dataclass, field
from typing import Any

from sandboxkit.errors import (
    AuthenticationError,
    CapacityError,
    ConfigurationError,
    ImageNotFoundError,
    ProviderUnavailableError,
    SandboxError,
    SandboxNotFoundError,
)
from sandboxkit.providers.e2b._answers import NoRouteError
from tests.emulators._answers import Row

__all__ = ["ANSWERS", "REQUESTS", "Answer", "rows"]

JSON = "application/json; charset=utf-8"
HTML = "text/html"
TEXT = "text/plain; charset=utf-8"

REQUESTS = {
    "create": "POST /v2/sandboxes",
    "list": "GET /v2/sandboxes",
    "get": "GET /sandboxes/",
    "stop": "DELETE /sandboxes/",
    "renew": "/timeout",
    "connect": "/process.Process/Start",
    "input": "/process.Process/StreamInput",
}
"""The request of each call."""
API = ("create", "list", "get", "stop", "renew")


@dataclass(frozen=True, slots=True)
class Answer:
    """One answer in the place of a success."""

    calls: tuple[str, ...]
    status: int
    kind: str
    body: str
    raised: type[SandboxError] | None
    retry_after: float | None = None
    headers: dict[str, str] = field(default_factory=dict)

    @property
    def row(self) -> Row:
        """Its line in the document."""
        kind = self.kind.partition(";")[0]
        headers = "".join(f" `{name}: {value}`" for name, value in self.headers.items())
        body = f"`{self.body}`" if self.body else "nothing"
        return Row(
            self.calls, f"{self.status} {kind}{headers}: {body}", self.raised, self.retry_after
        )


def body(code: int, message: str, **more: Any) -> str:
    """As the API and what stands before the daemon say it."""
    return json.dumps({"code": code, "message": message, **more})


def daemon(code: str, message: str) -> str:
    """As the daemon itself says it."""
    return json.dumps({"code": code, "message": message})


NGINX = "<html><head><title>502 Bad Gateway</title></head><body>nginx</body></html>"
GONE = "Sandbox \"i0\" doesn't exist or you don't have access to it"
QUOTA = (
    "you have reached the maximum number of concurrent E2B sandboxes (20). If you need more, "
    "please visit 'https://e2b.dev/docs/billing'"
)
WINDOW = {"RateLimit-Limit": "100", "RateLimit-Remaining": "0", "RateLimit-Reset": "30"}

ANSWERS = [
    # Who asks.
    Answer(API, 401, JSON, body(401, "authorization header is missing"), AuthenticationError),
    Answer(API, 403, JSON, body(403, "team is blocked: unpaid invoices"), AuthenticationError),
    Answer(API, 403, HTML, "<html>Forbidden</html>", AuthenticationError),
    Answer(
        ("create",),
        403,
        JSON,
        body(403, "you don't have access to template 'theirs'"),
        AuthenticationError,
    ),
    # What is asked for.
    Answer(("create",), 404, JSON, body(404, "template 'base' not found"), ImageNotFoundError),
    Answer(
        ("create",),
        404,
        JSON,
        body(404, "tag 'v9' does not exist for template 'base'"),
        ImageNotFoundError,
    ),
    Answer(
        ("create",),
        400,
        JSON,
        body(400, "template 'base' is not available in the requested cluster"),
        ImageNotFoundError,
    ),
    Answer(
        ("create",), 400, JSON, body(400, "Invalid template reference: a b"), ImageNotFoundError
    ),
    Answer(
        ("create",),
        400,
        JSON,
        body(400, "Timeout cannot be greater than 1 hours"),
        ConfigurationError,
    ),
    Answer(("renew",), 400, JSON, body(400, "Max instance length exceeded"), ConfigurationError),
    Answer(("list",), 400, JSON, body(400, "Error parsing metadata"), ConfigurationError),
    Answer(("get", "renew"), 404, JSON, body(404, GONE), SandboxNotFoundError),
    Answer(("get", "renew"), 400, JSON, body(400, "Invalid sandbox ID"), SandboxNotFoundError),
    Answer(
        ("renew",), 409, JSON, body(409, 'Sandbox "i0" is being paused'), ProviderUnavailableError
    ),
    # Servers that are not E2B's own.
    Answer(("renew",), 405, TEXT, "Method Not Allowed", NoRouteError),
    Answer(("renew",), 501, TEXT, "", NoRouteError),
    Answer(("renew",), 404, JSON, body(404, "route not found: POST /timeout"), NoRouteError),
    Answer(("create",), 400, JSON, body(400, "template base not found"), ImageNotFoundError),
    Answer(
        ("create",), 400, JSON, body(400, "Template or Checkpoint not found"), ImageNotFoundError
    ),
    Answer(("get", "renew"), 404, TEXT, "sandbox assignment not found", SandboxNotFoundError),
    Answer(("connect",), 404, TEXT, "sandbox not found", SandboxNotFoundError),
    Answer(("connect",), 502, TEXT, "healthy sandbox not found: i0", SandboxNotFoundError),
    # Another than E2B answers, or an older server.
    Answer(API, 404, TEXT, "404 page not found", ProviderUnavailableError),
    Answer(API, 302, HTML, "<a href='/login'>Found</a>", ProviderUnavailableError),
    Answer(API, 200, HTML, "<html>Please log in</html>", ProviderUnavailableError),
    Answer(("create", "list", "get"), 200, JSON, "{}", ProviderUnavailableError),
    Answer(("create", "list", "get"), 204, JSON, "", ProviderUnavailableError),
    # Too much, too fast.
    Answer(
        API,
        429,
        JSON,
        body(429, "Rate limit exceeded"),
        ProviderUnavailableError,
        7.0,
        {"Retry-After": "7", **WINDOW},
    ),
    Answer(
        API, 429, JSON, body(429, "Rate limit exceeded"), ProviderUnavailableError, 30.0, WINDOW
    ),
    Answer(API, 429, HTML, "<html>Slow down</html>", ProviderUnavailableError),
    Answer(API, 429, JSON, "{}", ProviderUnavailableError),
    Answer(("create",), 429, JSON, body(429, QUOTA), CapacityError),
    Answer(("create",), 402, JSON, body(402, "payment required"), CapacityError),
    Answer(
        ("create",),
        503,
        JSON,
        body(
            503,
            "Failed to place sandbox: not enough capacity for the requested resources right now, "
            "please retry shortly",
            error_code="sandbox_capacity_unavailable",
        ),
        CapacityError,
    ),
    Answer(
        ("create",),
        503,
        JSON,
        body(
            503,
            "Failed to place sandbox: no compatible node for this template's requirements",
            error_code="sandbox_no_compatible_node",
        ),
        CapacityError,
    ),
    Answer(
        ("create",),
        504,
        JSON,
        body(
            504,
            "Failed to place sandbox: placement timed out, please retry",
            error_code="sandbox_placement_timeout",
        ),
        ProviderUnavailableError,
    ),
    # It failed.
    Answer(API, 500, JSON, "{}", ProviderUnavailableError),
    Answer(API, 500, JSON, "[]", ProviderUnavailableError),
    Answer(API, 500, JSON, "null", ProviderUnavailableError),
    Answer(API, 500, JSON, "", ProviderUnavailableError),
    Answer(API, 500, JSON, '{"message": {"a": 1}}', ProviderUnavailableError),
    Answer(API, 500, JSON, "not JSON", ProviderUnavailableError),
    Answer(API, 500, JSON, body(500, "Rate limiter unavailable"), ProviderUnavailableError),
    Answer(API, 502, HTML, NGINX, ProviderUnavailableError),
    Answer(API, 503, HTML, NGINX, ProviderUnavailableError),
    Answer(API, 503, HTML, NGINX, ProviderUnavailableError, 5.0, {"Retry-After": "5"}),
    Answer(API, 504, HTML, NGINX, ProviderUnavailableError),
    # What stands before a sandbox's daemon.
    Answer(
        ("connect",),
        401,
        JSON,
        body(401, "unauthorized access, please provide a valid access token"),
        AuthenticationError,
    ),
    Answer(
        ("connect",), 403, JSON, body(403, "sandbox resume permission denied"), AuthenticationError
    ),
    Answer(
        ("connect",),
        502,
        JSON,
        body(502, "The sandbox was not found", sandboxId="i0"),
        SandboxNotFoundError,
    ),
    Answer(
        ("connect",),
        409,
        JSON,
        body(409, "The sandbox is still transitioning. Try again in a moment."),
        ProviderUnavailableError,
    ),
    Answer(
        ("connect",),
        429,
        JSON,
        body(
            429,
            "The sandbox has too many concurrent incoming connections (limit: 100)",
            connectionLimit=100,
        ),
        ProviderUnavailableError,
    ),
    Answer(
        ("connect",),
        429,
        HTML,
        "<html>Slow down</html>",
        ProviderUnavailableError,
        3.0,
        {"Retry-After": "3"},
    ),
    Answer(("connect",), 400, TEXT, "Invalid host", ProviderUnavailableError),
    Answer(("connect",), 404, HTML, NGINX, ProviderUnavailableError),
    Answer(
        ("connect",),
        502,
        JSON,
        body(502, "The sandbox is running but port is not open", port=49983),
        ProviderUnavailableError,
    ),
    Answer(("connect",), 500, JSON, "{}", ProviderUnavailableError),
    Answer(("connect",), 500, JSON, "", ProviderUnavailableError),
    Answer(("connect",), 500, HTML, NGINX, ProviderUnavailableError),
    Answer(("connect",), 502, HTML, NGINX, ProviderUnavailableError),
    Answer(("connect",), 503, HTML, NGINX, ProviderUnavailableError),
    Answer(("connect",), 504, HTML, NGINX, ProviderUnavailableError),
    Answer(("connect",), 200, HTML, "<html>Please log in</html>", ProviderUnavailableError),
    # The daemon.
    Answer(
        ("connect",),
        401,
        JSON,
        daemon("unauthenticated", "invalid username: 'root'"),
        ConfigurationError,
    ),
    Answer(
        ("connect",),
        400,
        JSON,
        daemon(
            "invalid_argument",
            "error starting process 'sh': fork/exec /bin/sh: resource temporarily unavailable",
        ),
        ProviderUnavailableError,
    ),
    Answer(("connect",), 500, JSON, daemon("internal", "something else"), ProviderUnavailableError),
    # An input that cannot be streamed goes in calls.
    Answer(("input",), 404, TEXT, "404 page not found", None),
    Answer(("input",), 404, JSON, daemon("unimplemented", "not implemented"), None),
    Answer(("input",), 411, HTML, "<html>Length Required</html>", None),
    Answer(("input",), 501, HTML, NGINX, None),
    Answer(("input",), 502, HTML, NGINX, None),
    Answer(("input",), 500, JSON, daemon("internal", "something else"), None),
    Answer(("input",), 200, HTML, "<html>Please log in</html>", None),
]


def rows() -> list[Row]:
    """All of it, for ANSWERS.md."""
    return [answer.row for answer in ANSWERS]

"""Maps E2B's error responses to sandboxkit's errors; ANSWERS.md has the table."""

from collections.abc import Mapping
from dataclasses import replace
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
from sandboxkit.providers._error_rules import ErrorRule, Failure, apply_rules
from sandboxkit.providers._hosted.ambiguous import AmbiguousError
from sandboxkit.providers._hosted.http_errors import retry_after

NAME = "e2b"
KEY_VARIABLE = "E2B_API_KEY"


class NoRouteError(ConfigurationError):
    """The server does not have the route: it runs an older version of E2B, or is not an E2B server."""


_NO_ROUTE = "no matching operation was found|method not allowed|^route not found: "
"""The messages for an unknown route: of E2B's own server as others host it, and of AgentENV."""
_LACKED = "the server at E2B_API_URL lacks this route; `sandboxkit doctor -p e2b` shows what works with it"
_NO_TEMPLATE = (
    "^(Invalid template reference|template '.*'|template .* not found|tag '.*' does not exist)"
)
_ENDED = r"^(the |healthy )?sandbox( \S+)?( was)? not found|^sandbox is not proxyable"
"""The messages for a sandbox that has ended or is paused, of the proxies of E2B, AgentENV and OpenKruise."""
_SHOWN = 500
"""How many characters of a response an error message quotes."""
_NOT_STARTED = "error starting process"
_OURS = "E2B's"
"""The code of a response that E2B itself sent, not a proxy in between."""

_REFUSED = (
    ErrorRule((401,), AuthenticationError, f"check {KEY_VARIABLE}"),
    ErrorRule((403,), AuthenticationError, f"the key in {KEY_VARIABLE} has no permission for it"),
    ErrorRule((402,), CapacityError, "see the account's billing"),
)
_API = (
    *_REFUSED,
    ErrorRule((405, 501), NoRouteError, _LACKED),
    ErrorRule((400, 404), NoRouteError, _LACKED, _NO_ROUTE, {_OURS}),
    ErrorRule((404,), SandboxNotFoundError, needed={_OURS, "sandbox"}),
    ErrorRule((400,), SandboxNotFoundError, "", "^Invalid sandbox ID", {_OURS, "sandbox"}),
    # The gateway of AgentENV's cluster.
    ErrorRule((404,), SandboxNotFoundError, "", "^sandbox assignment not found", {"sandbox"}),
    ErrorRule(
        (400, 404),
        ImageNotFoundError,
        "`e2b template list` shows those of this key",
        _NO_TEMPLATE,
        {_OURS, "template"},
    ),
    ErrorRule(
        (429,),
        CapacityError,
        "stop sandboxes or use fewer at a time",
        "maximum number of concurrent",
        {_OURS},
    ),
    ErrorRule((429,), ProviderUnavailableError, "slow down"),
    ErrorRule((404,), NoRouteError, "check E2B_API_URL and any proxy", "", {_OURS, "template"}),
    ErrorRule(
        ("sandbox_capacity_unavailable", "sandbox_no_compatible_node"),
        CapacityError,
        "try again later",
        needed={503},
    ),
    ErrorRule((408, 425), AmbiguousError, "try again"),
    ErrorRule((409,), ProviderUnavailableError, "try again", needed={_OURS}),
    ErrorRule(range(400, 500), ConfigurationError, needed={_OURS}),
    # These statuses prove that the call was not carried out.
    ErrorRule(range(500), ProviderUnavailableError, "check E2B_API_URL and any proxy"),
    ErrorRule((503,), ProviderUnavailableError, "try again"),
    ErrorRule((), AmbiguousError, "try again"),
)
_PROXY = (
    *_REFUSED,
    ErrorRule((404, 410, 502), SandboxNotFoundError, "", _ENDED),
    ErrorRule((429,), ProviderUnavailableError, "slow down"),
    ErrorRule((), ProviderUnavailableError, "check E2B_DOMAIN, E2B_SANDBOX_URL and any proxy"),
)
_DAEMON = (
    ErrorRule(
        (Code.UNAUTHENTICATED,),
        ConfigurationError,
        "sandboxkit needs that user in the template",
        "user",
    ),
    ErrorRule(
        (Code.UNAUTHENTICATED, Code.PERMISSION_DENIED),
        AuthenticationError,
        f"check {KEY_VARIABLE}",
    ),
    ErrorRule((Code.UNAVAILABLE,), SandboxNotFoundError, "", "sandbox was not found"),
    ErrorRule(
        (ConnectionError,),
        ProviderUnavailableError,
        "check the network, E2B_DOMAIN and E2B_SANDBOX_URL",
    ),
    ErrorRule((), ProviderUnavailableError, "try again"),
)


def of_api(
    status: int,
    headers: Mapping[str, str],
    body: bytes,
    *,
    what: str,
    route: str,
    sandbox_id: str | None = None,
) -> SandboxError:
    """Return sandboxkit's error for an error response of the control API.

    `what` is the call as a verb phrase, `route` its method and path, `sandbox_id` the sandbox of the call. The
    error is an AmbiguousError if E2B may have carried out the call.
    """
    if status in (404, 405, 501):
        what = f"{what} by {route}"
    failure = _failure(status, headers, body, what, sandbox_id)
    creates = route.startswith("POST ") and route.endswith("/sandboxes")
    codes = failure.codes | {"template"} if creates else failure.codes
    return apply_rules(replace(failure, codes=codes), _API)


def of_proxy(
    status: int, headers: Mapping[str, str], body: bytes, *, what: str, sandbox_id: str
) -> SandboxError:
    """Return sandboxkit's error for an error response of a proxy in front of a sandbox's daemon."""
    return apply_rules(_failure(status, headers, body, what, sandbox_id), _PROXY)


def of_daemon(error: ConnectError, *, what: str, sandbox_id: str) -> SandboxError:
    """Return sandboxkit's error for an error of a sandbox's daemon, or for its missing response."""
    message = _shown(error.message.encode(errors="replace"))
    if error.message.startswith(_NOT_STARTED):  # followed by the whole command line
        message = f"{_NOT_STARTED}: {_shown(error.message.rsplit(': ', 1)[-1].encode())}"
    text = f"e2b could not {what}: {message or error.code.value}"
    codes = {error.code, *type(error.__cause__).__mro__}
    return apply_rules(Failure(text, message, codes, sandbox_id), _DAEMON)


def _failure(
    status: int, headers: Mapping[str, str], body: bytes, what: str, sandbox_id: str | None
) -> Failure:
    message, reason = message_of(body)
    codes = {status, reason} if message is None else {status, reason, _OURS}
    shown = _shown(body) if message is None else message
    text = f"e2b could not {what}: {status} {shown}".rstrip()
    return Failure(text, shown, codes, sandbox_id, _seconds(headers))


def _seconds(headers: Mapping[str, str]) -> float | None:
    """Return the delay (s) in Retry-After, or else until E2B's rate limit resets; None without either."""
    delay = retry_after(headers)
    if delay is not None:
        return delay
    reset = headers.get("ratelimit-reset", "").strip()
    return float(reset) if reset.isascii() and reset.isdecimal() and len(reset) < 7 else None


def _shown(data: bytes) -> str:
    return data[: 4 * _SHOWN].decode(errors="replace").strip()[:_SHOWN]


def message_of(body: bytes) -> tuple[str | None, str]:
    """Return the message and error code of a response; the message is None if E2B did not send it."""
    try:
        reply = loads(body)
    except (ValueError, RecursionError):
        return None, ""
    if not isinstance(reply, dict) or not isinstance(reply.get("message"), str):
        return None, ""
    return reply["message"][:_SHOWN], str(reply.get("error_code", ""))

"""Finds out which server answers at E2B's address, and which of E2B's routes it lacks."""

import re
from dataclasses import dataclass

from e2b.api.client.api.sandboxes import (
    get_sandboxes_sandbox_id,
    post_sandboxes_sandbox_id_connect,
    post_sandboxes_sandbox_id_pause,
    post_sandboxes_sandbox_id_snapshots,
    post_sandboxes_sandbox_id_timeout,
)
from e2b.api.client.models import (
    ConnectSandbox,
    SandboxPauseRequest,
    SandboxSnapshotRequest,
    SandboxTimeoutRequest,
)

from sandboxkit.errors import ConfigurationError, SandboxError, SandboxNotFoundError
from sandboxkit.providers.e2b._account import E2BAccount, StatusError
from sandboxkit.providers.e2b._answers import NoRouteError

_NO_ROUTE = "^Sandbox route not found"
"""The beginning of OpenKruise's message for a sandbox of which this replica of the server has no route."""
_NO_ID = "00000000000040008000000000000000"
"""The id of no sandbox. AgentENV takes only UUIDs, E2B's own server only letters and digits."""
_ROUTES = (
    ("pause()", post_sandboxes_sandbox_id_pause, SandboxPauseRequest()),
    ("resume()", post_sandboxes_sandbox_id_connect, ConnectSandbox(timeout=60)),
    ("renew() and lifetime=None", post_sandboxes_sandbox_id_timeout, SandboxTimeoutRequest(60)),
    ("snapshots", post_sandboxes_sandbox_id_snapshots, SandboxSnapshotRequest()),
)
"""Each function that needs a route which a server may lack, the route, and the body of a request for it."""


@dataclass(frozen=True, slots=True)
class _ServerKind:
    """A server that speaks E2B's protocol."""

    name: str
    pattern: str
    """A regular expression for its message about an unknown sandbox, which identifies it."""
    isolation: str
    no_snapshots: str = ""
    """Why its snapshots cannot be used; "" if they can."""


_KINDS = (
    _ServerKind("E2B", "doesn't exist or you don't have access", "virtual machine"),
    _ServerKind(
        "AgentENV",
        r"^sandbox \S+ not found$",
        "virtual machine",
        "they keep memory and processes, not files alone",
    ),
    _ServerKind(
        "OpenKruise Agents",
        f"{_NO_ROUTE}|^Cannot get sandbox",
        "Kubernetes pod",
        "they have no names, by which others would find and remove them when they expire",
    ),
)
_UNKNOWN = _ServerKind("an unknown kind of server", "", "unknown isolation")


async def _identify(account: E2BAccount) -> _ServerKind:
    """Ask for a sandbox that does not exist, and recognize the server by its message."""
    try:
        await account.call(
            get_sandboxes_sandbox_id.asyncio_detailed,
            _NO_ID,
            what="identify the server",
            sandbox_id=_NO_ID,
        )
    except SandboxError as error:
        cause = error.__cause__
        if not isinstance(cause, StatusError) or cause.response.status_code >= 500:
            raise
        found = (kind for kind in _KINDS if re.search(kind.pattern, cause.message))
        return next(found, _UNKNOWN)
    return _UNKNOWN


async def describe(account: E2BAccount) -> tuple[str, str]:
    """Return the isolation of the server's sandboxes, and a text with its name and what does not work."""
    kind = await _identify(account)
    lacks = await _missing(account)
    text = f", which answers as {kind.name} does"
    if lacks:
        text += f"; it lacks the routes for {', '.join(lacks)}"
    if kind.no_snapshots:
        text += f"; sandboxkit refuses its snapshots: {kind.no_snapshots}"
    return f"{kind.isolation} on a server of one's own", text


async def check_snapshots(account: E2BAccount) -> None:
    """Raise ConfigurationError if sandboxkit cannot use the server's snapshots."""
    if account.is_e2bs:
        return
    kind = await _identify(account)
    if kind.no_snapshots:
        raise ConfigurationError(
            f"snapshots of {kind.name}, which answers at E2B_API_URL, cannot be used: {kind.no_snapshots}; set "
            "each sandbox up anew, or build a template"
        )


def lost_route(error: SandboxNotFoundError) -> bool:
    """Return whether a sandbox may exist although a server does not find it.

    OpenKruise deletes a missing sandbox with status 204. Its 404 means that this replica of the server has no
    route to the sandbox, as after a restart, or that the sandbox is of another key.
    """
    cause = error.__cause__
    return isinstance(cause, StatusError) and bool(re.match(_NO_ROUTE, cause.message))


async def _missing(account: E2BAccount) -> list[str]:
    """Return what does not work because the server lacks its route. The requests change nothing."""
    lacks = []
    for needs, route, body in _ROUTES:
        try:
            await account.call(
                route.asyncio_detailed, _NO_ID, what=f"probe {needs}", sandbox_id=_NO_ID, body=body
            )
        except NoRouteError:
            lacks.append(needs)
        except SandboxError as error:
            cause = error.__cause__
            if not isinstance(cause, StatusError):
                raise  # the server did not answer
            if cause.response.status_code == 404 and not isinstance(error, SandboxNotFoundError):
                lacks.append(needs)
    return lacks

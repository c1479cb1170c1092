"""How other servers that speak E2B's protocol differ from E2B's own, as their public sources have it.

Read at e2b-dev/infra 54693ff, kvcache-ai/AgentENV e3dcc6a and openkruise/agents 0b72c83.
"""

import re
import secrets
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field, replace

__all__ = ["SHAPES", "Shape"]

_KRUISE = "e2b.agents.kruise.io/sandbox-resource"
_QUALIFIED = re.compile(r"([a-z0-9.-]+/)?[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")


@dataclass(frozen=True)
class Shape:
    """A server. Messages may contain {id}, {template}, {method} and {path}; a body that is no JSON is text."""

    lacks: tuple[str, ...] = ()
    """Regular expressions of routes, "METHOD /path", that it does not have."""
    no_route: tuple[int, str] = (404, "not found")
    """Status and message for these. "text:" means a body of plain text."""
    ids: str = "[a-z0-9]+"
    """The form of sandboxes' ids; another one is status 400."""
    no_sandbox: str = "Sandbox \"{id}\" doesn't exist or you don't have access to it"
    no_template: tuple[int, str] = (404, "template '{template}' not found")
    ended: tuple[int, str] = (502, "")
    """The proxy's status and text for a sandbox that has ended; "" means E2B's JSON."""
    paused: tuple[int, str] = (502, "")
    not_running: tuple[int, str] = (404, 'Sandbox "{id}" isn\'t running')
    """The response to a new timeout of a paused sandbox."""
    wrong_token: str = "json"
    new_id: Callable[[], str] = field(default=lambda: "i" + secrets.token_hex(9))
    envd: str = "0.6.13"
    prefix: str = ""
    """The first part of the control API's paths, before "/sandboxes"."""
    quotes: int = 2
    """How often it decodes the metadata of a listing, after the query."""
    knows_networks: bool = True
    auto_pauses: bool = False
    """Whether it pauses a sandbox at its end unless the request says otherwise."""
    shortest: int = 0
    """Shortest lifetime (s)."""
    adds: tuple[tuple[str, str], ...] = ()
    """Metadata of its own that it reports."""
    qualified: bool = False
    """Whether keys of metadata must be qualified names of Kubernetes."""
    paused_until: int = 0
    """The end that it reports for a paused sandbox (s from now); 0: the time of the pause."""

    @property
    def is_old(self) -> bool:
        """Whether its daemon cannot close a program's stdin, and does not know the request to leave it out."""
        return self.envd == "0.2.10"

    def check_metadata(self, metadata: dict[str, str]) -> str:
        """Return what is wrong with the keys, or ""."""
        wrong = [key for key in metadata if self.qualified and not _QUALIFIED.fullmatch(key)]
        return f"Unqualified metadata key [{wrong[0]}]: must be a name" if wrong else ""


_CREATION = "POST /v2/sandboxes$"
SHAPES = {
    "": Shape(),
    "first-version": Shape(
        lacks=(_CREATION,),
        no_route=(400, "validation error: method not allowed"),
        knows_networks=False,
    ),
    "agentenv": Shape(
        lacks=(_CREATION,),
        no_route=(405, "text:"),
        ids=".*",
        no_sandbox="sandbox {id} not found",
        no_template=(400, "template {template} not found"),
        ended=(404, "sandbox not found"),
        paused=(410, "sandbox is not proxyable in its current state"),
        not_running=(500, "sandbox {id} is in state Paused"),
        wrong_token="",
        new_id=lambda: str(uuid.uuid4()),
        envd="0.5.15",
        quotes=1,
        auto_pauses=True,
        paused_until=10**9,
    ),
    "openkruise": Shape(
        lacks=(_CREATION,),
        no_route=(405, "text:Method Not Allowed\n"),
        ids=".*",
        no_sandbox="Sandbox route not found, maybe it is crashed or killed: {id}",
        no_template=(400, "Template or Checkpoint not found"),
        ended=(502, "sandbox not found: {id}"),
        paused=(502, "healthy sandbox not found: {id}"),
        not_running=(500, "sandbox {id} is not running"),
        new_id=lambda: f"team-a--base-{secrets.token_hex(3)}",
        envd="0.2.10",
        prefix="/kruise/api",
        quotes=1,
        shortest=30,
        adds=((_KRUISE, "team-a/base"),),
        qualified=True,
        paused_until=10**9,
    ),
    "partial": Shape(
        lacks=(_CREATION, "POST /sandboxes/[^/]+/(pause|snapshots|timeout)$", "GET /snapshots$"),
        no_route=(501, "text:not implemented"),
    ),
}
"""By their names, which are options of the emulator."""
SHAPES["agentenv-cluster"] = replace(
    SHAPES["agentenv"],
    no_sandbox="text:sandbox assignment not found\n",
    ended=(404, "sandbox assignment not found\n"),
)

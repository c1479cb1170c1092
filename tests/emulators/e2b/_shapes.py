"""How other servers that speak E2B's protocol differ from E2B's own, as their public sources have it.

Read at e2b-dev/infra 54693ff, kvcache-ai/AgentENV e3dcc6a and openkruise/agents 0b72c83.
"""

import re
import secrets
import tomllib
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

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
    id_form: str = "i{hex}"
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
    adds: Mapping[str, str] = field(default_factory=dict)
    """Metadata of its own that it reports."""
    qualified: bool = False
    """Whether keys of metadata must be qualified names of Kubernetes."""
    paused_until: int = 0
    """The end that it reports for a paused sandbox (s from now); 0: the time of the pause."""

    def new_id(self) -> str:
        """Return an id of a sandbox."""
        number = secrets.token_hex(9)
        return self.id_form.format(hex=number, short=number[:6], uuid=uuid.uuid4())

    @property
    def is_old(self) -> bool:
        """Whether its daemon cannot close a program's stdin, and does not know the request to leave it out."""
        return self.envd == "0.2.10"

    def check_metadata(self, metadata: dict[str, str]) -> str:
        """Return what is wrong with the keys, or ""."""
        wrong = [key for key in metadata if self.qualified and not _QUALIFIED.fullmatch(key)]
        return f"Unqualified metadata key [{wrong[0]}]: must be a name" if wrong else ""


def _shapes() -> dict[str, Shape]:
    rows = tomllib.loads(Path(__file__).with_name("shapes.toml").read_text())
    found = {"": Shape()}
    for name, row in rows.items():
        # Any: the types of Shape's fields.
        fields: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value for key, value in row.items()
        }
        found[name] = replace(found[fields.pop("like", "")], **fields)
    return found


SHAPES = _shapes()
"""By their names, which are options of the emulator."""

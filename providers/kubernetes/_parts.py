"""Stores the agent in a cluster as immutable ConfigMaps with its parts and a loader that joins them.

The agent is larger than the 1 MiB that a ConfigMap holds. No image needs to be built or pulled for
it, and starting it needs nothing from the sandbox's own image.
"""

import base64
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import anyio
import anyio.to_thread

from sandboxkit.errors import SandboxError
from sandboxkit.providers._agent import binary
from sandboxkit.providers.kubernetes import _tags
from sandboxkit.providers.kubernetes._api import Api
from sandboxkit.providers.kubernetes._errors import refusal_of

AGENT_DIRECTORY = "/.sandboxkit"
LOADER = f"{AGENT_DIRECTORY}/loader"
PART = "sandboxkit-agent-"
"""The prefix of the ConfigMaps' names."""
_PART_BYTES = 700_000
"""Less than 1 MiB as JSON; aiohttp sends a larger body in pieces and warns about it."""
_MODE = 0o444
_LOADER_MODE = 0o111
"""Unreadable, so that Linux lets no process of the same user trace it, not even as it starts."""


@dataclass(frozen=True, slots=True)
class AgentParts:
    """One agent, split into parts for ConfigMaps."""

    digest: str
    contents: Sequence[dict[str, bytes]]
    """File name to content, for each ConfigMap."""

    @property
    def names(self) -> list[str]:
        """The names of the ConfigMaps; they contain the digest, so contents never change."""
        return [f"{PART}{self.digest}-{number}" for number in range(len(self.contents))]

    # Any: manifests are JSON.
    @property
    def volume(self) -> dict[str, Any]:
        """A pod's volume "agent", which contains all the files."""
        sources = [
            {
                "configMap": {
                    "name": name,
                    "items": [
                        {
                            "key": key,
                            "path": key,
                            "mode": _LOADER_MODE if key == "loader" else _MODE,
                        }
                        for key in content
                    ],
                }
            }
            for name, content in zip(self.names, self.contents, strict=True)
        ]
        return {"name": "agent", "projected": {"defaultMode": _MODE, "sources": sources}}

    @property
    def config_maps(self) -> list[dict[str, Any]]:
        """The manifests of the ConfigMaps."""
        return [
            {
                "apiVersion": "v1",
                "kind": "ConfigMap",
                "immutable": True,
                "metadata": {"name": name, "labels": {f"{_tags.PREFIX}agent": self.digest}},
                "binaryData": {
                    key: base64.b64encode(data).decode() for key, data in content.items()
                },
            }
            for name, content in zip(self.names, self.contents, strict=True)
        ]


def parts_of(loader: bytes, agent: bytes) -> AgentParts:
    """Split an agent into parts that fit into ConfigMaps."""
    digest = hashlib.sha256(len(loader).to_bytes(8, "big") + loader + agent).hexdigest()[:16]
    pieces = [agent[at : at + _PART_BYTES] for at in range(0, len(agent), _PART_BYTES)]
    contents = [{f"p{number}": piece} for number, piece in enumerate(pieces)]
    contents[0] = {"loader": loader, **contents[0]}
    return AgentParts(digest, contents)


class Parts:
    """Ensures that the agent's parts are in the namespace."""

    def __init__(self, api: Api, architecture: str) -> None:
        self._api, self._architecture = api, architecture
        self._lock = anyio.Lock()
        self._parts: AgentParts | None = None
        self._there = False

    async def ensure(self) -> AgentParts:
        """Create missing ConfigMaps, at the first call only; those of other versions are kept."""
        async with self._lock:
            if self._parts is None:
                self._parts = await anyio.to_thread.run_sync(self._read)
            if not self._there:
                path = await self._api.path("configmaps")
                for body in self._parts.config_maps:
                    try:
                        await self._api.call(
                            "POST", path, body, what="store the sandbox agent in a ConfigMap"
                        )
                    except SandboxError as error:
                        refusal = refusal_of(error)
                        if refusal is None or refusal.reason != "AlreadyExists":
                            raise
                self._there = True
            return self._parts

    async def restore(self) -> AgentParts:
        """Recreate the ConfigMaps that somebody has deleted."""
        self._there = False
        return await self.ensure()

    def _read(self) -> AgentParts:
        loader = binary.loader(self._architecture).read_bytes()
        return parts_of(loader, binary.path(self._architecture).read_bytes())

"""Sandboxes that clients create, use and delete over HTTP.

A tag of each sandbox holds its client's name. So every replica on the same backend can serve it, and a
client sees only its own sandboxes. The replica that started a sandbox stops it after its lifetime and, if it
has an owner, `ServiceConfig.lease` seconds after the owner's last link.
"""

import asyncio
import contextlib
import dataclasses
import json
import logging
import time
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import anyio
from anyio.abc import ByteStream

from sandboxkit import (
    CommandTimeoutError,
    ConfigurationError,
    Operation,
    ProviderUnavailableError,
    Sandbox,
    SandboxError,
    SandboxNotFoundError,
    Session,
)
from sandboxkit.integrations.serve import _allowance
from sandboxkit.integrations.serve._admission import BusyError
from sandboxkit.integrations.serve._config import ServiceConfig
from sandboxkit.integrations.serve._models import ExecRequest, RunResult, SandboxRequest
from sandboxkit.integrations.serve._tokens import Token
from sandboxkit.types import SandboxInfo

_log = logging.getLogger(__name__)
_OUTPUT = 2 * 1024 * 1024
_FILE = 256 * 1024 * 1024
_RETRY_AFTER = 10
_LINKS = 64
"""Maximum number of open links to one sandbox; each process that uses the sandbox has one."""
_TEND_SECONDS = 1.0
_AGENT_SECONDS = 10.0
"""Seconds after the end of its lifetime at which a sandbox is stopped, if it has not ended by itself.
Until then its client can still request the reason of its end."""


@dataclass(eq=False)
class _Lent:
    """A sandbox that this replica started."""

    client: str
    sandbox: Sandbox
    ends: float
    """The time at which its lifetime ends, by `time.monotonic`."""
    owned: bool
    key: str | None
    """The key of the request that created it, with which the client can undo the creation."""
    links: int = 0
    """Number of open links of its owner."""
    unlinked: float = field(default_factory=time.monotonic)
    """The time at which its owner's last link closed, by `time.monotonic`."""

    def is_over(self, lease: float) -> bool:
        now = time.monotonic()
        abandoned = self.owned and not self.links and now > self.unlinked + lease
        return abandoned or now > self.ends + _AGENT_SECONDS


class ClientSandboxes:
    """The sandboxes of all clients, in one session."""

    def __init__(self, session: Session, config: ServiceConfig) -> None:
        self._session, self._config = session, config
        self._made: dict[str, _Lent] = {}
        self._starting: Counter[str] = Counter()
        self._creations: dict[tuple[str, str], asyncio.Task[str]] = {}
        """The creations in progress that have a key."""
        self._links: Counter[str] = Counter()
        """Number of open links to each sandbox."""

    async def tend(self) -> None:
        """Stop sandboxes whose owner's lease or whose lifetime is over; runs until it is cancelled."""
        ending: dict[str, asyncio.Task[None]] = {}
        while True:
            await asyncio.sleep(_TEND_SECONDS)
            for sandbox_id, lent in self._made.items():
                if sandbox_id not in ending and lent.is_over(self._config.lease):
                    # Each has its own task, so that a backend call that hangs does not delay the others.
                    ending[sandbox_id] = asyncio.create_task(self._end(sandbox_id, lent))
            for sandbox_id in [each for each, task in ending.items() if task.done()]:
                await ending.pop(sandbox_id)

    async def _end(self, sandbox_id: str, lent: _Lent) -> None:
        try:
            await lent.sandbox.stop()
        except SandboxError as error:
            _log.warning("sandbox %s could not be stopped; retrying: %s", sandbox_id, error)
        else:
            self._made.pop(sandbox_id, None)

    async def create(self, client: Token, wanted: SandboxRequest) -> str:
        """Start a sandbox and return its id.

        Raises BusyError if the replica has reached its limit of sandboxes, or the client its quota, and
        ConfigurationError for what the operator has not allowed; for a request with a key also if the key
        is in use, the lifetime longer than the service's, or the backend's sandboxes have no agent.
        """
        key = (client.name, wanted.key or "")
        if not wanted.key:
            return await self._create(client, wanted)
        if key in self._creations:
            raise ConfigurationError(f"key={wanted.key!r} is in use; give each creation its own")
        task = self._creations[key] = asyncio.create_task(self._create(client, wanted))
        try:
            return await task
        except asyncio.CancelledError:
            task.cancel()
            await asyncio.wait([task])
            raise
        finally:
            del self._creations[key]

    async def undo(self, client: Token, key: str) -> str:
        """Cancel or delete the creation with this key; return the sandbox's id, "" if there is none."""
        task = self._creations.get((client.name, key))
        if task is not None:
            task.cancel()
            await asyncio.wait([task])
        for sandbox_id, lent in tuple(self._made.items()):
            if (lent.client, lent.key) == (client.name, key):
                await self.delete(client, sandbox_id)
                return sandbox_id
        return ""

    async def _create(self, client: Token, wanted: SandboxRequest) -> str:
        _allowance.check(self._config, wanted.model_dump(), self._session.provider_name)
        tags = pack(wanted.tags)
        if self._full(client):
            await self._forget_ended()
        if reason := self._full(client):
            raise BusyError(f"{reason}; delete one", _RETRY_AFTER)
        lifetime = wanted.lifetime or self._config.lifetime
        if wanted.key:
            self._check_lifetime(lifetime)
            self._check_link()
        lifetime = min(lifetime, self._config.lifetime)
        # Any: the client's options
        given: dict[str, Any] = wanted.model_dump(exclude_defaults=True, exclude={"owned", "key"})
        given |= {"lifetime": lifetime, "tags": {**tags, CLIENT: client.name}}
        self._starting[client.name] += 1
        try:
            sandbox = self._session.sandbox(**given)
            try:
                await sandbox.start()
            except BaseException:
                await asyncio.shield(asyncio.wrap_future(sandbox.stop()))
                raise
        finally:
            self._starting[client.name] -= 1
        assert sandbox.id is not None
        ends = time.monotonic() + lifetime
        self._made[sandbox.id] = _Lent(client.name, sandbox, ends, wanted.owned, wanted.key)
        return sandbox.id

    def _check_link(self) -> None:
        provider = self._session.provider
        if not provider.has("open_link"):
            raise ConfigurationError(
                f"the service's provider {provider.name!r} has no agent in its sandboxes, so it cannot lend "
                "them to a Session; run `sandboxkit serve` with another provider"
            )

    def _check_lifetime(self, lifetime: float) -> None:
        if lifetime > self._config.lifetime:
            raise ConfigurationError(
                f"lifetime={lifetime:g} is longer than the service's {self._config.lifetime:g} s; "
                "give less, or start `sandboxkit serve` with a longer --lifetime"
            )

    def _full(self, client: Token) -> str:
        """Return the reason why the client cannot get another sandbox, or "" if it can."""
        if len(self._made) + self._starting.total() >= self._config.sandboxes:
            return f"this replica has {self._config.sandboxes} sandboxes"
        own = sum(lent.client == client.name for lent in self._made.values())
        if client.quota is not None and own + self._starting[client.name] >= client.quota:
            return f"{client.name!r} has {client.quota} sandboxes, its quota"
        return ""

    async def find(self, client: Token, sandbox_id: str) -> Sandbox:
        """Return a client's sandbox. Raises SandboxNotFoundError, also for another client's."""
        lent = self._made.get(sandbox_id)
        if lent is not None and lent.client == client.name:
            return lent.sandbox
        await self._info(client, sandbox_id)
        return await self._session.from_id(sandbox_id)

    async def _info(self, client: Token, sandbox_id: str) -> SandboxInfo:
        """Describe a client's sandbox. Raises SandboxNotFoundError, also for another client's."""
        try:
            info = await Operation(self._session.provider.box(sandbox_id).info())
            if info.tags.get(CLIENT) == client.name:
                return info
        except SandboxNotFoundError:
            pass  # one text for both: a client learns nothing of another's
        text = f"no sandbox {sandbox_id!r}; it may have ended"
        raise SandboxNotFoundError(text, sandbox_id=sandbox_id)

    async def describe(self, client: Token, sandbox_id: str) -> dict[str, Any]:
        """Describe a client's sandbox. Raises SandboxNotFoundError."""
        return _described(await self._info(client, sandbox_id))

    async def of(self, client: Token) -> list[Mapping[str, Any]]:
        """Describe the sandboxes of a client."""
        return [_described(info) for info in await self._session.list({CLIENT: client.name})]

    @contextlib.asynccontextmanager
    async def link(
        self, client: Token, sandbox_id: str, *, owner: bool
    ) -> AsyncIterator[ByteStream]:
        """Yield a new link to a sandbox's agent, for use on sandboxkit's event loop.

        Raises ProviderUnavailableError for an owner's link if another replica started the sandbox,
        because that replica would stop it; BusyError beyond 64 links to the sandbox; and the errors of
        `Box.open_link`.
        """
        await self.find(client, sandbox_id)
        lent = self._made.get(sandbox_id)
        if owner and lent is None:
            raise ProviderUnavailableError(
                f"another replica started sandbox {sandbox_id!r}: connect to it, with session affinity",
                sandbox_id=sandbox_id,
            )
        if self._links[sandbox_id] >= _LINKS:
            raise BusyError(f"sandbox {sandbox_id!r} has {_LINKS} open links", _RETRY_AFTER)
        self._links[sandbox_id] += 1
        owned = lent if owner else None
        if owned is not None:
            owned.links += 1
        try:
            yield await Operation(self._session.provider.box(sandbox_id).open_link())
        finally:
            self._links[sandbox_id] -= 1
            if not self._links[sandbox_id]:
                del self._links[sandbox_id]
            if owned is not None:
                owned.links -= 1
                owned.unlinked = time.monotonic()

    async def renew(self, client: Token, sandbox_id: str, lifetime: float) -> None:
        """Set a sandbox's remaining lifetime in seconds.

        Raises ConfigurationError if it exceeds the service's maximum.
        """
        self._check_lifetime(lifetime)
        await (await self.find(client, sandbox_id)).renew(lifetime)
        if lent := self._made.get(sandbox_id):
            lent.ends = time.monotonic() + lifetime

    async def why_ended(self, client: Token, sandbox_id: str) -> SandboxError:
        """Return the error for a sandbox that has ended. Raises SandboxNotFoundError for an unknown one."""
        await self.find(client, sandbox_id)
        return await Operation(self._session.provider.box(sandbox_id).why_ended())

    async def usage(self, client: Token, sandbox_id: str) -> dict[str, Any] | None:
        """Return a sandbox's resource usage; None if the backend does not report it."""
        await self.find(client, sandbox_id)
        usage = await Operation(self._session.provider.box(sandbox_id).usage())
        return None if usage is None else dataclasses.asdict(usage)

    async def exec(
        self, client: Token, sandbox_id: str, wanted: ExecRequest
    ) -> AsyncGenerator[RunResult, None]:
        """Run a command to its end and yield its only result. Raises SandboxNotFoundError."""
        sandbox = await self.find(client, sandbox_id)
        try:
            result = await sandbox.exec(
                wanted.argv,
                cwd=wanted.cwd,
                env=wanted.env,
                stdin=wanted.stdin.encode() or None,
                timeout=min(wanted.timeout, self._config.deadline),
                output_limit=_OUTPUT,
            )
        except CommandTimeoutError as error:
            yield RunResult(outcome="timeout", returncode=None, detail=str(error))
        else:
            yield RunResult.of(result)

    async def read(self, client: Token, sandbox_id: str, path: str) -> AsyncGenerator[bytes, None]:
        """Yield a file's content in pieces, no faster than they are taken. Raises SandboxFileError."""
        await (await self.find(client, sandbox_id)).stat(path)
        pieces = self._session.provider.box(sandbox_id).read_pieces(path, max_bytes=_FILE)

        lock = anyio.Lock()  # a step that was cancelled may take a moment to end

        async def following() -> bytes | None:
            async with lock:
                return await anext(pieces, None)

        async def close() -> None:
            async with lock:
                await pieces.aclose()

        try:
            while (piece := await Operation(following())) is not None:
                yield piece
        finally:
            await Operation(close())

    async def delete(self, client: Token, sandbox_id: str) -> None:
        """Delete a sandbox; an unknown id is no error."""
        try:
            sandbox = await self.find(client, sandbox_id)
        except SandboxNotFoundError:
            self._made.pop(sandbox_id, None)
            return
        await sandbox.stop()
        self._made.pop(sandbox_id, None)

    async def _forget_ended(self) -> None:
        for sandbox_id, lent in tuple(self._made.items()):
            try:
                await lent.sandbox.status()
            except SandboxNotFoundError:
                self._made.pop(sandbox_id, None)


def _described(info: SandboxInfo) -> dict[str, Any]:
    return {
        "id": info.id,
        "state": info.state,
        "tags": unpack(info.tags),
        # A folder of this machine has a name that clients need not know.
        "image": info.image if info.image and not info.image.startswith("/") else None,
        "created_at": info.created_at,
        "expires_at": info.expires_at,
    }


CLIENT = "serve.client"
"""The key of the tag with the client's name."""
_PACKED = "serve.tags."
_PIECE = 256
_LONGEST = 16 << 10


def pack(tags: Mapping[str, str]) -> dict[str, str]:
    """Return tags that encode `tags`, under keys that every backend accepts. Raises ConfigurationError."""
    text = json.dumps(dict(tags), separators=(",", ":"))
    if len(text) > _LONGEST or not "".join([*tags, *tags.values()]).isprintable():
        raise ConfigurationError(
            f"tags={text[:100]!r}: use printable strings, in all at most {_LONGEST} characters as JSON"
        )
    pieces = (text[at : at + _PIECE] for at in range(0, len(text), _PIECE))
    return {f"{_PACKED}{number}": piece for number, piece in enumerate(pieces)}


def unpack(stored: Mapping[str, str]) -> dict[str, str]:
    """Return the client's own tags of a sandbox, from all its tags `stored`."""
    numbers = sorted(int(key.removeprefix(_PACKED)) for key in stored if key.startswith(_PACKED))
    text = "".join(stored[f"{_PACKED}{number}"] for number in numbers)
    return dict(json.loads(text or "{}"))

"""Sandboxes that clients create, use and delete over HTTP.

A sandbox carries its client's name as a tag, which is all that the service knows of it: any replica on
the same backend answers for it, and a client sees its own sandboxes only.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Mapping
from typing import Any

from sandboxkit import CommandTimeoutError, Sandbox, SandboxNotFoundError, Session
from sandboxkit.integrations.serve._admission import BusyError
from sandboxkit.integrations.serve._config import ServiceConfig
from sandboxkit.integrations.serve._models import ExecRequest, RunResult, SandboxRequest
from sandboxkit.integrations.serve._tokens import Token

CLIENT = "serve.client"
_OUTPUT = 8 * 1024 * 1024
_RETRY_AFTER = 10


class ClientSandboxes:
    """The sandboxes of clients, in one session."""

    def __init__(self, session: Session, config: ServiceConfig) -> None:
        self._session, self._config = session, config
        self._made: dict[str, tuple[str, Sandbox]] = {}
        self._starting: Counter[str] = Counter()

    async def create(self, client: Token, wanted: SandboxRequest) -> str:
        """Start a sandbox and return its id.

        Raises BusyError if the replica has `sandboxes` already, or the client as many as its quota.
        """
        if self._full(client):
            await self._forget_ended()
        if reason := self._full(client):
            raise BusyError(f"{reason}; delete one", _RETRY_AFTER)
        lifetime = min(wanted.lifetime or self._config.lifetime, self._config.lifetime)
        given: dict[str, Any] = {**self._config.options}  # Any: the session's options
        given |= {k: v for k, v in wanted.model_dump().items() if v not in (None, {}, "standard")}
        given |= {"lifetime": lifetime, "tags": {**wanted.tags, CLIENT: client.name}}
        self._starting[client.name] += 1
        try:
            sandbox = self._session.sandbox(**given)
            try:
                await sandbox.start()
            except BaseException:
                await asyncio.shield(asyncio.ensure_future(_stopped(sandbox)))
                raise
        finally:
            self._starting[client.name] -= 1
        assert sandbox.id is not None
        self._made[sandbox.id] = client.name, sandbox
        return sandbox.id

    def _full(self, client: Token) -> str:
        """Return why the client gets no further sandbox, or ""."""
        if len(self._made) + self._starting.total() >= self._config.sandboxes:
            return f"this replica has {self._config.sandboxes} sandboxes"
        own = sum(owner == client.name for owner, _ in self._made.values())
        if client.quota is not None and own + self._starting[client.name] >= client.quota:
            return f"{client.name!r} has {client.quota} sandboxes, its quota"
        return ""

    async def find(self, client: Token, sandbox_id: str) -> Sandbox:
        """Return a client's sandbox. Raises SandboxNotFoundError, also for another client's."""
        owner, sandbox = self._made.get(sandbox_id) or await self._of_another_replica(sandbox_id)
        if owner != client.name:
            raise SandboxNotFoundError(f"no sandbox {sandbox_id!r}", sandbox_id=sandbox_id)
        return sandbox

    async def _of_another_replica(self, sandbox_id: str) -> tuple[str, Sandbox]:
        sandbox = await self._session.from_id(sandbox_id)
        info = await sandbox.status()
        return info.tags.get(CLIENT, ""), sandbox

    async def of(self, client: Token) -> list[Mapping[str, Any]]:
        """Describe the sandboxes of a client."""
        found = await self._session.list({CLIENT: client.name})
        return [
            {"id": info.id, "state": info.state, "created_at": info.created_at} for info in found
        ]

    async def exec(
        self, client: Token, sandbox_id: str, wanted: ExecRequest
    ) -> AsyncGenerator[RunResult, None]:
        """Run a command to its end and yield its result."""
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
        for sandbox_id, (_, sandbox) in tuple(self._made.items()):
            try:
                await sandbox.status()
            except SandboxNotFoundError:
                self._made.pop(sandbox_id, None)


async def _stopped(sandbox: Sandbox) -> None:
    await sandbox.stop()

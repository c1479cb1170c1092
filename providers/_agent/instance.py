"""All of a provider's state for one sandbox, in one object."""

import asyncio
from collections.abc import Coroutine
from dataclasses import dataclass, field
from typing import Any

from sandboxkit.providers._agent.client import AgentClient
from sandboxkit.providers._agent.heartbeat import BusyDetector


@dataclass(frozen=True, slots=True)
class ProcessorTimes:
    """The CPU and starved seconds of a sandbox since its start; `starved` is None if it is unknown."""

    processor: float
    starved: float | None


@dataclass(eq=False)
class Instance:
    """One provider object's state for one sandbox.

    A subclass adds its backend's fields, and overrides `aclose` to release their resources.
    """

    id: str
    is_ours: bool = False
    """Whether this provider created the sandbox, and so keeps this object until the sandbox is deleted."""
    deletions: int = 0
    """Number of `delete` calls in progress."""
    client: AgentClient | None = None
    lifeline: AgentClient | None = None
    """The owner's connection, whose end ends the sandbox. `client` is the same, or a faster connection."""
    boot: bytes | None = None
    """Identifies this run of the sandbox's agent: a restarted agent has another value."""
    connecting: "asyncio.Task[AgentClient] | None" = None
    paused: bool = False
    """Whether this provider paused the sandbox, and has not resumed it since."""
    progress: BusyDetector = field(default_factory=BusyDetector)
    replaced: tuple[int, int] = 0, 0
    """How many bytes went to and came from its agent over clients that others have replaced."""
    before: ProcessorTimes = ProcessorTimes(0.0, 0.0)
    """The sandbox's usage at the last reset."""
    timer: "asyncio.Task[None] | None" = None
    """The background task that renews the sandbox or ends it in time."""

    async def set_timer(self, work: Coroutine[Any, Any, None] | None) -> None:
        """Cancel the timer, and run `work` in the background as the new one, unless it is None."""
        before, self.timer = self.timer, None if work is None else asyncio.create_task(work)
        if before is not None and before is not asyncio.current_task():
            before.cancel()
            await asyncio.wait([before])

    def moved(self) -> tuple[int, int]:
        """Return how many bytes went to its agent and came from it, over all connections of this process."""
        clients = {
            id(client): client for client in (self.client, self.lifeline) if client is not None
        }
        counts = [self.replaced, *(client.moved for client in clients.values())]
        return sum(sent for sent, _ in counts), sum(received for _, received in counts)

    def hold(self, paused: bool) -> None:
        """Note that its machine is paused, so that requests outlive the pause, or that it is no longer."""
        self.paused = paused
        for client in (self.client, self.lifeline):
            if client is not None:
                client.hold(paused)

    def replace_client(self) -> None:
        """Forget a client that has ended, but not what went over it."""
        if self.client is not None and self.client is not self.lifeline:
            (sent, received), (more, again) = self.replaced, self.client.moved
            self.replaced = sent + more, received + again
        self.client = None

    async def disconnect(self) -> None:
        """Close the agent connections; this ends an owned sandbox unless it is detached. Idempotent."""
        connecting, self.connecting = self.connecting, None
        if connecting is not None and connecting is not asyncio.current_task():
            connecting.cancel()
        clients = (self.client, self.lifeline)
        self.client = self.lifeline = None
        for client in clients:
            if client is not None:
                await client.aclose()

    async def aclose(self) -> None:
        """Release all resources, without waiting for the sandbox's end. Idempotent."""
        await self.set_timer(None)
        await self.disconnect()

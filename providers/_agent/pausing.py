"""Pause by the agent: it stops all programs of a sandbox, and runs on itself.

A freezer that stops the agent as well, such as `docker pause`, would stop the sandbox from ending with its owner
and with its lifetime.
"""

from dataclasses import replace

from sandboxkit.providers._agent import requests
from sandboxkit.providers._agent.provider import AgentProvider, InstanceT
from sandboxkit.types import SandboxInfo, SandboxState


class PausingProvider(AgentProvider[InstanceT]):
    """`AgentProvider` whose sandboxes can be paused."""

    def check_pause(self) -> None:
        pass

    async def pause(self, sandbox_id: str) -> None:
        await self._ask(sandbox_id, None, requests.pause, True)
        self._known(sandbox_id).paused = True

    async def resume(self, sandbox_id: str) -> None:
        await self._ask(sandbox_id, None, requests.pause, False)
        self._known(sandbox_id).paused = False

    def _stated(self, info: SandboxInfo) -> SandboxInfo:
        """Return the description of a sandbox, with the state PAUSED if this provider paused it."""
        paused = self._known(info.id).paused and info.state is SandboxState.RUNNING
        return replace(info, state=SandboxState.PAUSED) if paused else info

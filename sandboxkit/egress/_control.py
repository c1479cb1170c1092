"""The network of one sandbox: its proxy, and the environment variables that make commands use it."""

import asyncio
import dataclasses
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from sandboxkit._calls import _arguments
from sandboxkit._lifecycle import Lifecycle
from sandboxkit.egress._proxy import EgressProxy
from sandboxkit.egress._rules import Egress
from sandboxkit.errors import ConfigurationError
from sandboxkit.provider import Box
from sandboxkit.tunnels._context_task import ContextTask
from sandboxkit.tunnels._served import Served, listening
from sandboxkit.types import Command, Network, SandboxSpec

_DIRECT = "localhost,127.0.0.1,::1"


def checked(network: Network | Egress, spec: SandboxSpec, *, by_id: bool) -> Egress | None:
    """Check the arguments of `Sandbox.set_network`; return the new Egress, or None for "none".

    `by_id`: the sandbox was reached by its id. Raises ConfigurationError.
    """
    if not isinstance(network, Egress) and network != "none":
        _arguments.refuse("network", network, "'none' or Egress(allow=['pypi.org'])")
    if by_id:
        raise ConfigurationError(
            "this sandbox was reached by its id, so its network is not known here: call set_network() on the "
            "Sandbox of the session that made it"
        )
    if spec.network != "none":
        raise ConfigurationError(
            f"a sandbox with network={spec.network!r} cannot be cut off later: make it with 'none' or Egress"
        )
    if spec.native_rules is not None or (isinstance(network, Egress) and network.native):
        raise ConfigurationError(
            "a vendor's own list, Egress(native=True), is set when the sandbox is made and cannot be "
            "changed: leave native=True out, or make another sandbox"
        )
    return network if isinstance(network, Egress) else None


class NetworkControl:
    """Starts the egress proxy of a sandbox when the sandbox starts, and changes its rules."""

    def __init__(self, life: Lifecycle) -> None:
        """Raise ConfigurationError if the provider cannot listen in a sandbox."""
        if not life.provider.has("listen"):
            raise ConfigurationError(
                f"network=Egress(...): provider {life.provider.name!r} cannot listen in a sandbox; use "
                "network='none' or 'internet'"
            )
        self._life, self._turn = life, asyncio.Lock()
        self._proxy: EgressProxy | None = None
        self._port = 0

    def _variables(self) -> dict[str, str]:
        if not self._port:
            return {}
        url = f"http://127.0.0.1:{self._port}"
        names = {"http_proxy": url, "https_proxy": url, "all_proxy": url, "no_proxy": _DIRECT}
        return {
            **names,
            **{name.upper(): value for name, value in names.items()},
            "NODE_USE_ENV_PROXY": "1",  # Node reads the variables only with this one
        }

    def with_proxy(self, command: Command) -> Command:
        """Return the command with the proxy's environment variables; variables that the user set win."""
        spec = self._life.spec
        ours = {
            name: value
            for name, value in self._variables().items()
            if name not in spec.env and name not in spec.secrets
        }
        return dataclasses.replace(command, env={**ours, **command.env})

    def refused(self, since: float) -> tuple[str, ...]:
        """Return the servers, as "name:port", that were refused from `since` on (monotonic seconds)."""
        known = {} if self._proxy is None else self._proxy.refused
        return tuple(server for server, when in known.items() if when >= since)

    async def begin(self, box: Box) -> None:
        """Start the proxy of a sandbox that is starting, if its spec has an `Egress`."""
        self._proxy, self._port = None, 0
        if self._life.spec.egress is not None:
            await self._listen(box, self._life.spec.egress)

    async def change(self, egress: Egress | None) -> None:
        """Apply the rules of `egress` from now on, None to refuse everything; close open connections.

        They become part of the sandbox's spec, from which forks are made.
        """
        box = await self._life.started()

        def changed() -> None:
            self._life.spec = dataclasses.replace(self._life.spec, egress=egress)

        async with self._turn:
            if self._proxy is not None:
                await self._proxy.change(egress, changed)
                return
            if egress is not None:
                await self._listen(box, egress)
            changed()

    async def _listen(self, box: Box, egress: Egress) -> None:
        proxy = EgressProxy(box.id, egress)

        @asynccontextmanager
        async def served(box: Box, hold: ContextTask[Served]) -> AsyncIterator[Served]:
            self._proxy = proxy
            try:
                async with listening(box, self._port, proxy, hold) as port:
                    yield port
            finally:
                if self._proxy is proxy:  # the next start may have made another one
                    self._proxy = None
                await proxy.close()

        # The port stays the same, because programs that run already know it.
        hold: ContextTask[Served] = ContextTask(self._life, served)
        try:
            self._port = (await hold.open(box)).port
        except BaseException:
            await proxy.close()
            raise

"""network="none" by a NetworkPolicy that denies all traffic, with a test that it is enforced.

Kubernetes accepts such a policy on any cluster, but only the network plugin enforces it, and some
plugins do not. So three pods test it first.
"""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any

import anyio

from sandboxkit.errors import CommandStartError, ConfigurationError, SandboxError
from sandboxkit.provider import Box, StreamName
from sandboxkit.providers.kubernetes._api import Api
from sandboxkit.providers.kubernetes._errors import refusal_of
from sandboxkit.providers.kubernetes._pod import NETWORK
from sandboxkit.types import Command, Network, SandboxSpec

# Any: a manifest is JSON.
POLICY: dict[str, Any] = {
    "apiVersion": "networking.k8s.io/v1",
    "kind": "NetworkPolicy",
    "metadata": {"name": "sandboxkit-no-network"},
    "spec": {
        "podSelector": {"matchLabels": {NETWORK: "none"}},
        "policyTypes": ["Ingress", "Egress"],
    },
}
_LISTEN = """
import socket
address = socket.gethostbyname(socket.gethostname())
server = socket.create_server((address, 0))
print(address, server.getsockname()[1], flush=True)
while True:
    server.accept()[0].close()
"""
_REACH = """
import socket, sys, time
end = time.monotonic() + float(sys.argv[3])
while True:
    try:
        socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=3)
        break
    except OSError:
        if time.monotonic() > end:
            sys.exit(7)
        time.sleep(0.1)
"""
_PATIENCE = 8.0
"""How long (s) a plugin may take to let a new pod reach an allowed peer."""
_UNREACHED = 7
_LIFETIME = 120.0
_SECONDS = 60.0


class NetworkPolicyProbe:
    """The policy and the test of its enforcement, for the first sandbox that needs them."""

    def __init__(
        self,
        api: Api,
        create: Callable[[SandboxSpec], Awaitable[Box]],
    ) -> None:
        self._api, self._create = api, create
        self._lock = anyio.Lock()
        self._proven = False
        self._refusal: ConfigurationError | None = None

    async def ensure(self, image: str) -> None:
        """Create the policy and test once that it is enforced; `image` needs python3.

        Raises ConfigurationError if the policy is not enforced or the test fails.
        """
        async with self._lock:
            if self._refusal is not None:
                raise self._refusal
            if self._proven:
                return
            await self._make()
            try:
                with anyio.fail_after(_SECONDS):
                    await self._prove(image)
            except ConfigurationError as error:
                self._refusal = error
                raise
            except TimeoutError as error:
                raise _unproven(
                    f"the three pods of the check took more than {_SECONDS:g} s"
                ) from error
            self._proven = True

    async def _make(self) -> None:
        await self._api.open()
        path = f"/apis/networking.k8s.io/v1/namespaces/{self._api.namespace}/networkpolicies"
        try:
            await self._api.call("POST", path, POLICY, what="make the policy of network='none'")
        except SandboxError as error:
            refusal = refusal_of(error)
            if refusal is None or refusal.reason != "AlreadyExists":
                raise

    async def _prove(self, image: str) -> None:
        networks: tuple[Network, ...] = ("internet", "internet", "none")
        pods: dict[int, Box] = {}

        async def start(number: int) -> None:
            spec = SandboxSpec(
                image=image,
                network=networks[number],
                lifetime=_LIFETIME,
                tags={"sandboxkit.canary": networks[number]},
            )
            pods[number] = await self._create(spec)

        try:
            await _all(*(partial(start, number) for number in range(len(networks))))
            await self._try(*(pods[number] for number in range(len(networks))))
        except CommandStartError as error:
            raise _unproven(f"the image {image!r} has no python3 for the check") from error
        finally:
            with anyio.CancelScope(shield=True):
                await _all(*(pod.delete for pod in pods.values()))

    async def _try(self, listener: Box, free: Box, denied: Box) -> None:
        output = bytearray()
        listens = anyio.Event()

        async def hear(stream: StreamName, data: bytes) -> None:
            if stream == "stdout":
                output.extend(data)
                if b"\n" in output:
                    listens.set()

        async def ignore(stream: StreamName, data: bytes) -> None:
            pass

        async def listen() -> None:
            await listener.exec(Command(("python3", "-c", _LISTEN)), hear)
            listens.set()

        async def reach(pod: Box, patience: float) -> bool:
            address = output.decode().split()
            argv = ("python3", "-c", _REACH, *address, str(patience))
            status = (await pod.exec(Command(argv), ignore)).status
            if len(address) != 2 or status not in (0, _UNREACHED):
                raise _unproven("the program of the check failed")
            return status == 0

        answers: list[bool] = []

        async def ask() -> None:
            await listens.wait()
            answers.append(await reach(free, _PATIENCE))
            answers.append(await reach(denied, 0))

        async def until_asked() -> None:
            await ask()
            group.cancel_scope.cancel()

        try:
            async with anyio.create_task_group() as group:
                group.start_soon(listen)
                group.start_soon(until_asked)
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None
        refusal = verdict(free=answers[0], denied=answers[1])
        if refusal is not None:
            raise refusal


async def _all(*calls: Callable[[], Awaitable[None]]) -> None:
    """Make the calls concurrently; raise the first error after all calls have ended."""

    async def make(call: Callable[[], Awaitable[None]]) -> None:
        await call()

    try:
        async with anyio.create_task_group() as group:
            for call in calls:
                group.start_soon(make, call)
    except BaseExceptionGroup as errors:
        raise errors.exceptions[0] from None


def verdict(*, free: bool, denied: bool) -> ConfigurationError | None:
    """Return the error for a test's result, or None if the policy is enforced.

    `free` and `denied` say whether the pods without and with the policy reached the third pod.
    """
    if denied:
        return ConfigurationError(
            "kubernetes cannot honour network='none' by no_network='policy': this cluster's network "
            "plugin does not enforce network policies. Install one that does, or use "
            "security='baseline' with no_network='interfaces', or network='internet'"
        )
    if not free:
        return _unproven(
            "pods without the policy do not reach each other either; let those with the label "
            f"{NETWORK}=internet do so"
        )
    return None


def _unproven(why: str) -> ConfigurationError:
    return ConfigurationError(
        "kubernetes cannot honour network='none' by no_network='policy': it could not be verified that the "
        f"cluster enforces network policies, because {why}. Fix this, or use security='baseline' with "
        "no_network='interfaces', or network='internet'"
    )

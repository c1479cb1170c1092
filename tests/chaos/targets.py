"""The backends of the faulted calls, each behind a proxy that breaks its connections."""

import os
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from unittest import mock

from sandboxkit import Operation, Sandbox, SandboxError, Session
from sandboxkit.provider import Provider
from sandboxkit.providers.docker import DockerProvider, _direct
from sandboxkit.providers.local import LocalProvider
from tests.chaos.calls import TAG, Tally, calling, storm, weather
from tests.chaos.distant import no_way
from tests.faults import FaultProxy, Plan

MAIN = ["sh", "-c", "sleep 0.5; exit 3"]
TIMEOUT = 2.0
"""Seconds that each provider gives its server for an answer."""
PAUSES = {"local": 0.3, "docker": 3.0}
"""A sandbox of Docker's ends with its client's connection: there must be time to make another."""
WORKERS = {"docker": 4}
"""As many as it starts sandboxes at a time on two processors: nobody waits for a turn."""


@dataclass
class Target:
    """A provider, and the proxies on its way."""

    provider: Provider
    proxies: list[FaultProxy]
    make: Callable[[Session], Operation[Sandbox]] = lambda each: each.sandbox(command=MAIN).start()
    plan: Plan | None = None

    def open(self, upstream: str, stack: ExitStack) -> FaultProxy:
        """Open another proxy on its way, which `stack` closes; a storm reaches only open ones."""
        proxy = stack.enter_context(FaultProxy(upstream, plan=self.plan))
        self.proxies.append(proxy)
        return proxy


@contextmanager
def docker(listen: str) -> Iterator[Target]:
    upstream = os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock")
    distant = mock.patch.object(_direct, "connect", no_way)
    with FaultProxy(upstream, listen="tcp" if listen == "tcp" else "unix") as proxy, distant:
        yield Target(DockerProvider(base_url=proxy.url, timeout=TIMEOUT), [proxy])


@contextmanager
def local() -> Iterator[Target]:
    """Sandboxes of another client, whose agents' sockets lead through proxies."""
    with ExitStack() as stack, Session("local", tags=TAG) as owner:
        state = Path(os.environ["SANDBOXKIT_STATE_DIR"])
        target = Target(LocalProvider(), [])

        def make(session: Session) -> Operation[Sandbox]:
            sandbox = owner.sandbox(command=MAIN).start().result()
            assert sandbox.id is not None
            agent = state / sandbox.id / "agent.sock"
            real = agent.rename(agent.with_name("real.sock"))
            proxy = target.open(f"unix://{real}", stack)
            agent.symlink_to(proxy.url.removeprefix("unix://"))
            return session.from_id(sandbox.id)

        target.make = make
        yield target


TARGETS: dict[str, Callable[[], AbstractContextManager[Target]]] = {
    "local": local,
    "docker-unix": lambda: docker("unix"),
    "docker-tcp": lambda: docker("tcp"),
}


def run(name: str, count: int, seed: int, *, share: float = 0.1) -> Tally:
    """Make `count` faulted calls on a target, then heal it and see what is left."""
    with TARGETS[name]() as target:
        target.plan = weather(seed, share)
        for proxy in target.proxies:
            proxy.plan = target.plan
        session = Session(target.provider, tags=TAG, lifetime=600)
        tally, calls, kind = Tally(), iter(range(count)), name.partition("-")[0]
        more, workers = lambda: next(calls, None) is not None, WORKERS.get(kind, 8)
        called = calling(session, target.make, tally, more, seed=seed, workers=workers)
        try:
            with storm(target.proxies, seed, PAUSES[kind]), called:
                pass
        finally:
            for proxy in target.proxies:
                proxy.heal()
            try:
                session.close().result(120)
            except* SandboxError:
                session.close().result(120)  # the first time met what the last storm broke
            # What could not be removed while it was broken is removed now.
            Operation(target.provider.aclose()).result(60)
        for proxy in target.proxies:
            tally.faults.update(proxy.faults)
        if name != "local":
            with Session(target.provider.name) as after:
                tally.left = left(after)
                for sandbox_id in (each.partition(" ")[0] for each in tally.left):
                    after.from_id(sandbox_id).result(60).stop().result(60)
        Operation(target.provider.aclose()).result(60)
        return tally


def left(session: Session) -> list[str]:
    """What lives on; backends may take a moment for their last removals."""
    deadline = time.monotonic() + 60
    while found := [f"{info.id} {info.state}" for info in session.list(TAG).result(60)]:
        if time.monotonic() > deadline:
            break
        time.sleep(0.1)
    return found

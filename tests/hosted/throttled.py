"""Creations that a vendor lets through a few a second: asked no sooner than it said, by all together."""

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from sandboxkit import Operation, ProviderUnavailableError, Session
from sandboxkit.provider import Provider
from sandboxkit.types import SandboxSpec

__all__ = ["JOBS", "Watch", "create_all"]

JOBS, AT_ONCE = 12, 6


@dataclass
class Watch:
    """What a session asked of its provider."""

    asked: int = 0
    refused: int = 0
    early: int = 0
    """How many creations began before the vendor wanted the next."""
    until: float = 0.0

    def over(self, provider: Provider) -> None:
        """Look at all creations of it from now on."""
        create = provider.create

        async def watched(spec: SandboxSpec) -> str:
            self.asked += 1
            self.early += time.monotonic() < self.until
            try:
                return await create(spec)
            except ProviderUnavailableError as error:
                self.refused += 1
                self.until = max(self.until, time.monotonic() + (error.retry_after or 0.0))
                raise

        provider.create = watched  # type: ignore[method-assign]  # the one that it is given to


def create_all(provider: Provider) -> Watch:
    """Make JOBS sandboxes in one session, AT_ONCE at a time, each anew where it was refused.

    The provider is closed then.
    """
    watch = Watch()
    watch.over(provider)

    def job(session: Session) -> None:
        while True:
            sandbox = session.sandbox()
            try:
                sandbox.start().result(60)
                return
            except ProviderUnavailableError:
                pass
            finally:
                sandbox.stop().result(60)

    try:
        with Session(provider) as session, ThreadPoolExecutor(AT_ONCE) as threads:
            list(threads.map(job, [session] * JOBS))
    finally:
        Operation(provider.aclose()).result(30)
    return watch

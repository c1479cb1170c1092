"""Claims many sandboxes at once, prints their pods on one line, and deletes them when told to."""

import asyncio
import sys

from sandboxkit.provider import FirstCommand
from sandboxkit.providers.kubernetes._warm_pool import WarmPoolProvider
from sandboxkit.types import SandboxSpec


class Claimer(WarmPoolProvider):
    """Claims of pods that no node runs, into which no agent can be brought."""

    async def _begin(
        self,
        sandbox_id: str,
        spec: SandboxSpec,
        first: FirstCommand | None = None,
        *,
        user: str | None = None,
    ) -> None:
        pass


async def main(count: int) -> None:
    """Claim, print, wait for a line, delete."""
    provider = Claimer(timeout=120)
    ids = await asyncio.gather(*(provider.create(SandboxSpec()) for _ in range(count)))
    places = [provider._known(each).place for each in ids]
    sys.stdout.write(" ".join(place[0] for place in places if place is not None) + "\n")
    sys.stdout.flush()
    await asyncio.to_thread(sys.stdin.readline)
    await asyncio.gather(*map(provider.delete, ids))
    await provider.aclose()


if __name__ == "__main__":
    asyncio.run(main(int(sys.argv[1])))

"""How an outage of the backend is told from the few failures that every long run has."""

import asyncio

from sandboxkit import CapacityError, ProviderUnavailableError, Session

__all__ = ["is_outage", "require_working"]


def is_outage(failed: int, needed: int, limit: float) -> bool:
    """Whether so many failures, of the samples that needed a sandbox, are to stop a run.

    They are where there is one and their share is `limit` or more: with 0 the first of them is,
    with 1 only the failure of all. Of samples that needed no sandbox nothing can be learned.
    """
    return failed > 0 and failed / needed >= limit


async def require_working(session: Session, deadline: float) -> None:
    """Start a sandbox and stop it, so that a backend that cannot work says so before a batch.

    Raises what the provider raises, and ProviderUnavailableError past `deadline` seconds. One
    that is full does work: what waits for it has deadlines of its own.
    """
    sandbox = session.sandbox()
    try:
        async with asyncio.timeout(deadline):
            await sandbox.start()
    except CapacityError:
        return
    except TimeoutError:
        raise ProviderUnavailableError(
            f"no sandbox of provider {session.provider_name!r} started within {deadline:g} s: is "
            "its backend up?",
            provider=session.provider_name,
        ) from None
    finally:
        await sandbox.stop()

"""Detects an outage of the backend, as opposed to the few failures that any long run has."""

import asyncio

from sandboxkit import CapacityError, ProviderUnavailableError, Sandbox, SandboxError, Session


def is_outage(failed: int, needed: int, limit: float) -> bool:
    """Whether `failed` of the `needed` samples that used a sandbox are enough to stop a run.

    True if failed > 0 and failed / needed >= limit: with a limit of 0 the first failure is enough,
    with 1 all must fail. Do not count samples that needed no sandbox: they do not test the backend.
    """
    return failed > 0 and failed / needed >= limit


async def require_working(session: Session, deadline: float) -> None:
    """Start and stop a sandbox, to detect a broken backend before a batch begins.

    Raises any error of the provider, and ProviderUnavailableError after `deadline` seconds. A
    CapacityError is ignored: a full backend works, and waiting samples have their own deadlines.
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
            "its backend running?",
            provider=session.provider_name,
        ) from None
    finally:
        await sandbox.stop()


async def stop_broken(sandbox: Sandbox) -> None:
    """Stop a sandbox that may be broken. If that fails, the session tries again when it closes."""
    try:
        await sandbox.stop()
    except SandboxError:
        pass

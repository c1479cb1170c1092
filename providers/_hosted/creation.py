"""Creating a sandbox once: with a key of ours, by which an unclear attempt is found again."""

from collections.abc import Awaitable, Callable, Sequence

import anyio
import anyio.lowlevel

from sandboxkit.errors import SandboxError
from sandboxkit.providers._hosted.deadline import OutcomeUnknownError

__all__ = ["create_once"]

_LOOKS = (0.0, 0.2, 0.4, 0.8)
"""Seconds before each look: what is created may appear in listings a little later."""
_SEARCH_SECONDS = 1.8


async def create_once(
    create: Callable[[], Awaitable[str]],
    find: Callable[[], Awaitable[Sequence[str]]],
    delete: Callable[[str], Awaitable[None]],
) -> str:
    """Create a sandbox and return its id; failed or cancelled, none is left.

    `create` stores a key of this attempt with the sandbox and must end within its own deadline;
    `find` lists the ids that carry the key. After OutcomeUnknownError the first sandbox found is
    taken and any other deleted. A vendor that carries out the call later still ends the sandbox
    after its lifetime.
    """
    # Not to be cancelled halfway: the vendor would go on, and nobody would know the id.
    sandbox_id = ""
    with anyio.CancelScope(shield=True):
        try:
            sandbox_id = await create()
        except OutcomeUnknownError as error:
            found = await _search(find, delete, error)
            if found is None:
                raise
            sandbox_id = found
    try:
        await anyio.lowlevel.checkpoint_if_cancelled()
    except BaseException:
        with anyio.CancelScope(shield=True):
            await delete(sandbox_id)
        raise
    return sandbox_id


async def _search(
    find: Callable[[], Awaitable[Sequence[str]]],
    delete: Callable[[str], Awaitable[None]],
    error: OutcomeUnknownError,
) -> str | None:
    with anyio.move_on_after(_SEARCH_SECONDS):
        for pause in _LOOKS:
            await anyio.sleep(pause)
            try:
                found = await find()
            except SandboxError as failure:
                error.add_note(f"and looking for what it made failed: {failure}")
                return None
            for extra in found[1:]:
                await delete(extra)
            if found:
                return found[0]
    return None

"""The end of all that belongs to a command, when something else has gone wrong or it has to go."""

from collections.abc import Awaitable

from sandboxkit.errors import SandboxError, SandboxNotFoundError, SandboxTerminatedError

__all__ = ["make_sure"]


async def make_sure(kill: Awaitable[None], reason: BaseException) -> None:
    """Await the vendor's call that kills a command, whose end has this reason.

    Raises the SandboxError of a kill that is not certain, unless the reason is one: it gets a note.
    """
    try:
        await kill
    except (SandboxNotFoundError, SandboxTerminatedError):
        pass  # with all that ran in it
    except SandboxError as error:
        if not isinstance(reason, SandboxError):
            raise
        reason.add_note(f"and what is left of the command was not ended: {error}")

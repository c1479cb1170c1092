"""The errors for refused agent calls, except file calls."""

import errno

from sandboxkit.errors import (
    AgentTooOldError,
    ConfigurationError,
    ProviderUnavailableError,
    SandboxError,
    SandboxPausedError,
)
from sandboxkit.providers._agent.failures import CallError
from sandboxkit.providers._agent.requests import PAUSED

__all__ = ["refused"]


def refused(error: CallError, provider: str, sandbox_id: str) -> SandboxError:
    """Return the provider error for a call that the agent refused."""
    if error.errno == errno.ENOSYS:
        return AgentTooOldError(
            f"the agent of sandbox {sandbox_id!r} is too old ({error}): another version of sandboxkit "
            "started it. Start the sandbox again with this version; if its image has an agent, renew "
            "that first with `sandboxkit bake`",
            provider=provider,
            sandbox_id=sandbox_id,
        )
    if error.errno == PAUSED:
        return SandboxPausedError(
            f"{error}: call resume() first", provider=provider, sandbox_id=sandbox_id
        )
    if error.errno == errno.ETIMEDOUT:
        # The machine is overloaded; the caller's options are not at fault.
        return ProviderUnavailableError(str(error), provider=provider, sandbox_id=sandbox_id)
    return ConfigurationError(str(error), provider=provider, sandbox_id=sandbox_id)

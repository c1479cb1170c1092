"""The requests that pause and resume a sandbox at E2B, which keeps its memory and stops its lifetime."""

import math
import time
from typing import Any

from e2b.api.client.api.sandboxes import (
    post_sandboxes_sandbox_id_connect,
    post_sandboxes_sandbox_id_pause,
)
from e2b.api.client.models import ConnectSandbox, SandboxPauseRequest

from sandboxkit.errors import SandboxPausedError
from sandboxkit.providers._hosted.lifetime import LEASE
from sandboxkit.providers.e2b._account import E2BAccount

PAUSED = "paused"
"""The state of a paused sandbox in E2B's descriptions."""
_EXPIRES = "sandboxkit.expires"


async def request_pause(account: E2BAccount, sandbox_id: str) -> None:
    """Pause a running sandbox. Raises the account's errors; a conflict is a ProviderUnavailableError."""
    await account.call(
        post_sandboxes_sandbox_id_pause.asyncio_detailed,
        sandbox_id,
        what="pause a sandbox",
        sandbox_id=sandbox_id,
        done=True,
        slow=True,
        body=SandboxPauseRequest(),
    )


# Any: the generated classes are untyped.
async def request_resume(account: E2BAccount, sandbox_id: str, seconds: int) -> Any:
    """Resume a sandbox for so many seconds, and return how to reach it."""
    answer = await account.call(
        post_sandboxes_sandbox_id_connect.asyncio_detailed,
        sandbox_id,
        what="resume a sandbox",
        sandbox_id=sandbox_id,
        slow=True,
        body=ConnectSandbox(timeout=seconds),
    )
    return answer.parsed


def seconds_left(known: float | None, detail: Any) -> int:
    """Return the lifetime (s) that a paused sandbox had left.

    `known` is what this process noted at the pause. Otherwise it follows from the expiry among the tags and
    the end that E2B reports, which is the time of the pause. Without both it is a lease: other servers report
    an end in the far future.
    """
    paused: float = detail.end_at.timestamp()
    left: float = LEASE
    expires = dict(detail.metadata or {}).get(_EXPIRES)
    if known is not None:
        left = known
    elif expires is not None and paused < time.time() + LEASE:
        left = float(expires) - paused
    return max(math.ceil(left), 1)


def paused_error(sandbox_id: str) -> SandboxPausedError:
    """Return the error for calls of a paused sandbox."""
    return SandboxPausedError(f"sandbox {sandbox_id!r} is paused: call resume() first")

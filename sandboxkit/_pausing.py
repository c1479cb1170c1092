"""Pause and resume of a sandbox: its programs stand still, and so do the timeouts of its commands."""

import anyio

from sandboxkit._lifecycle import Lifecycle
from sandboxkit._operation import Operation


def change(life: Lifecycle, *, paused: bool) -> Operation[None]:
    """Pause or resume a sandbox; see `Sandbox.pause` and `Sandbox.resume`."""
    life.refuse_ended()
    life.provider.check_pause()

    async def run(sandbox_id: str) -> None:
        async with life.clock.one:
            # Shielded: a cancelled change would leave it unknown whether the sandbox is paused.
            with anyio.CancelScope(shield=True):
                if paused:
                    await life.provider.pause(sandbox_id)
                    life.clock.pause()
                else:
                    await life.provider.resume(sandbox_id)
                    life.clock.resume()
                if life.meter is not None:
                    life.meter.hold(paused)

    return Operation(life.call(run), of=life)

"""What this machine lacks is nobody's fault in a sandbox: no thread can be started here."""

from sandboxkit.errors import ProviderUnavailableError

__all__ = ["NO_THREAD", "no_thread"]

NO_THREAD = "can't start new thread"
"""What Python says, in a RuntimeError, where the system refuses one."""


def no_thread(error: RuntimeError) -> ProviderUnavailableError | None:
    """The error to raise in place of one that says so; None for any other one."""
    if str(error) != NO_THREAD:
        return None
    return ProviderUnavailableError(
        "this machine, not the sandbox, has no room for another thread: its processes and threads "
        "are as many as they may be (ulimit -u, or the pids.max of a control group), or its memory "
        "is full; run fewer at a time, or raise the limit"
    )

"""A failure to start a thread on this machine, as an infrastructure error."""

from sandboxkit.errors import ProviderUnavailableError

_NO_THREAD = "can't start new thread"
"""The message of Python's RuntimeError when the system refuses a new thread."""


def no_thread(error: RuntimeError) -> ProviderUnavailableError | None:
    """Return the error to raise instead if `error` means a refused thread, else None."""
    if str(error) != _NO_THREAD:
        return None
    return ProviderUnavailableError(
        "this machine, not the sandbox, cannot start another thread: it has reached a limit of processes "
        "and threads (ulimit -u, or the pids.max of a control group), or its memory is full; run fewer at a "
        "time, or raise the limit"
    )

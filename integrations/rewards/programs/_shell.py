"""The shell command under whose limits a compiler or program runs."""

from collections.abc import Sequence

from sandboxkit.integrations.rewards._limits import Limits
from sandboxkit.integrations.rewards._programs import processor_seconds

FILE_MB = 256
"""The largest file in MiB that a compiler or program may write."""
_STACK = 'ulimit -S -s unlimited 2>/dev/null || ulimit -S -s "$(ulimit -H -s)"; '
_LIMITS = f"ulimit -c 0; ulimit -f {FILE_MB << 11}; "
_PROCESSOR = 'ulimit -S -t "$1" && ulimit -H -t "$2"; shift 2; exec "$@"'


def limited(argv: Sequence[str], limits: Limits, *, stack: bool = True) -> list[str]:
    """Return the command that runs `argv` with limits of CPU time and file size, and no core files.

    With `stack` the stack may grow as far as the memory. Each process may use `limits.timeout` of CPU
    time, rounded up to whole seconds; the caller measures the sum.
    """
    script = _LIMITS + (_STACK if stack else "") + _PROCESSOR
    return ["/bin/sh", "-c", script, "sh", *map(str, processor_seconds(limits)), *argv]

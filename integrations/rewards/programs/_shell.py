"""Wraps the command of a compiler or program in a shell script that sets resource limits."""

from collections.abc import Sequence

from sandboxkit.integrations.rewards._limits import Limits
from sandboxkit.integrations.rewards._programs import processor_seconds

FILE_MB = 256
"""Maximum size in MiB of a file that a compiler or program writes."""
_STACK = 'ulimit -S -s unlimited 2>/dev/null || ulimit -S -s "$(ulimit -H -s)"; '
_LIMITS = f"ulimit -c 0; ulimit -f {FILE_MB << 11}; "
_PROCESSOR = 'ulimit -S -t "$1" && ulimit -H -t "$2"; shift 2; exec "$@"'


def limited(argv: Sequence[str], limits: Limits, *, stack: bool = True) -> list[str]:
    """Return the command that runs `argv` with limits of CPU time and file size, and without core files.

    With `stack` the stack may grow as far as the system permits. The CPU time limit of each process is
    `limits.timeout`, rounded up to whole seconds; the caller measures the sum.
    """
    script = _LIMITS + (_STACK if stack else "") + _PROCESSOR
    return ["/bin/sh", "-c", script, "sh", *map(str, processor_seconds(limits)), *argv]

"""The resource limits of a compiler, a program or a checker, and what it means when one does not start."""

import errno

from sandboxkit import CommandStartError
from sandboxkit.integrations.rewards._limits import Limits
from sandboxkit.integrations.rewards._programs import processor_seconds
from sandboxkit.types import CommandFile, CommandSetup, ResourceName

FILE_MB = 256
"""The largest file in MiB that a compiler or program may write."""
_FILE_BYTES = FILE_MB << 20
_CANNOT_RUN = (errno.ENOENT, errno.EACCES, errno.ENOEXEC, errno.ENOTDIR, errno.ELOOP)


def limited(
    limits: Limits, *, files: tuple[CommandFile, ...] = (), stack: bool = True
) -> CommandSetup:
    """Return a setup with limits of CPU time and file size, without core files, and with `files`.

    With `stack` the stack may grow as far as the memory. Each process may use `limits.timeout` of CPU
    time, rounded up to whole seconds; the caller measures the sum.
    """
    rlimits: dict[ResourceName, tuple[int | None, int | None]] = {
        "core": (0, 0),
        "fsize": (_FILE_BYTES, _FILE_BYTES),
        "cpu": processor_seconds(limits),
    }
    if stack:
        rlimits["stack"] = (None, None)
    return CommandSetup(files, rlimits)


def cannot_run(error: CommandStartError) -> bool:
    """Whether a command was not started because there is no such program that the machine can run."""
    return error.errno in _CANNOT_RUN

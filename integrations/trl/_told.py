"""The text that a tool returns for a finished command."""

from sandboxkit import CommandTimeoutError, ProcessResult


def told(result: ProcessResult) -> str:
    """Return the command's output, and its exit status unless it is 0."""
    said = result.stdout + result.stderr
    return said if result.returncode == 0 else f"{said}\n[exit status {result.returncode}]"


def told_killed(error: CommandTimeoutError, timeout: float) -> str:
    """Return the output of a command that timed out, and a note that it was killed."""
    said = error.result.stdout + error.result.stderr
    return f"{said}\n[killed: it ran longer than {timeout:g} seconds]"

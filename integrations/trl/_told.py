"""What a tool says of a command that has ended."""

from sandboxkit import CommandTimeoutError, ProcessResult


def told(result: ProcessResult) -> str:
    """Its output, and its exit status unless that is 0."""
    said = result.stdout + result.stderr
    return said if result.returncode == 0 else f"{said}\n[exit status {result.returncode}]"


def told_killed(error: CommandTimeoutError, timeout: float) -> str:
    """Its output until it was killed, and why it was."""
    said = error.result.stdout + error.result.stderr
    return f"{said}\n[killed: it ran longer than {timeout:g} seconds]"

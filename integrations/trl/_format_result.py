"""Formats a finished command's output as the text that a tool returns."""

from sandboxkit import CommandTimeoutError, ProcessResult


def format_result(result: ProcessResult) -> str:
    """Return the command's output, and its exit status unless it is 0."""
    output = result.stdout + result.stderr
    return output if result.returncode == 0 else f"{output}\n[exit status {result.returncode}]"


def format_killed(error: CommandTimeoutError, timeout: float) -> str:
    """Return the output of a command that exceeded `timeout` seconds, and a note that it was killed."""
    output = error.result.stdout + error.result.stderr
    return f"{output}\n[killed: it ran longer than {timeout:g} seconds]"

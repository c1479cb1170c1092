"""The result of a tool call, as the model reads it."""

from dataclasses import dataclass


class ToolError(Exception):
    """A mistake of the model. The message is shown to the model, which can try again."""


@dataclass(frozen=True, slots=True)
class ToolResult:
    """The result of one tool call."""

    text: str
    """The text that the model sees."""
    error: bool = False
    """Whether the call was refused, is still running or exited with a non-zero status."""
    submitted: bool = False
    """Whether the model submitted its work."""


def refusal(reason: object) -> ToolResult:
    """Return the result of a call that was refused."""
    return ToolResult(f"ERROR: {reason}", error=True)

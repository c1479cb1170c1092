"""What a tool call comes to, for the model to read."""

from dataclasses import dataclass


class ToolError(Exception):
    """The model's own mistake: its text is shown to the model, which can try again."""


@dataclass(frozen=True, slots=True)
class ToolResult:
    """The answer to one tool call."""

    text: str
    """What the model sees."""
    error: bool = False
    """Whether the call was refused, still runs or exited with a non-zero status."""
    submitted: bool = False
    """Whether the model declared that it is done."""

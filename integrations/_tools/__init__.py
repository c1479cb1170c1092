"""A model's tools in a sandbox, shared by the integrations: a shell, a file editor and submit."""

from sandboxkit.integrations._tools._bash import Bash, BashResult
from sandboxkit.integrations._tools._clock import Clock
from sandboxkit.integrations._tools._editor import Editor
from sandboxkit.integrations._tools._result import ToolError, ToolResult
from sandboxkit.integrations._tools._schemas import BASH, EDITOR, SCHEMAS, SUBMIT
from sandboxkit.integrations._tools._toolbox import MARKER, Toolbox, format_result
from sandboxkit.integrations._tools._truncate import stderr_of, truncate_middle

__all__ = [
    "BASH",
    "EDITOR",
    "MARKER",
    "SCHEMAS",
    "SUBMIT",
    "Bash",
    "BashResult",
    "Clock",
    "Editor",
    "ToolError",
    "ToolResult",
    "Toolbox",
    "format_result",
    "stderr_of",
    "truncate_middle",
]

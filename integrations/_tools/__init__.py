"""A model's tools in a sandbox, shared by the integrations: a shell, a file editor and submit."""

from sandboxkit.integrations._tools._bash import Bash
from sandboxkit.integrations._tools._clock import Clock
from sandboxkit.integrations._tools._result import ToolError, ToolResult, refusal
from sandboxkit.integrations._tools._schemas import BASH, EDITOR, SCHEMAS, SUBMIT, Schema
from sandboxkit.integrations._tools._shell import killed_after, shell_argv
from sandboxkit.integrations._tools._toolbox import MARKER, Toolbox
from sandboxkit.integrations._tools._truncate import stderr_of, truncate_middle

__all__ = [
    "BASH",
    "EDITOR",
    "MARKER",
    "SCHEMAS",
    "SUBMIT",
    "Bash",
    "Clock",
    "Schema",
    "ToolError",
    "ToolResult",
    "Toolbox",
    "killed_after",
    "refusal",
    "shell_argv",
    "stderr_of",
    "truncate_middle",
]

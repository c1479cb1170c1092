"""Schemas of the tools, in the format of OpenAI's chat completions API."""

from typing import Any

# Any: a JSON schema.
Schema = dict[str, Any]


def _function(name: str, description: str, properties: Schema, required: list[str]) -> Schema:
    return {
        "type": "function",
        "function": {
            "name": name,
            "description": description,
            "parameters": {
                "type": "object",
                "properties": properties,
                "required": required,
                "additionalProperties": False,
            },
        },
    }


BASH: Schema = _function(
    "bash",
    "Run a bash script in a persistent shell: its directory, variables, functions and jobs are kept "
    "for the next call. Long output is cut in the middle. A script that exceeds the time limit keeps "
    "running, and you get its output so far. Then an empty command waits for more output, the command "
    "C-c stops it, and as_input types the command into it.",
    {
        "command": {"type": "string", "description": "The script to run."},
        "as_input": {
            "type": "boolean",
            "description": "Whether the command is input for the script that is still running.",
        },
    },
    ["command"],
)

EDITOR: Schema = _function(
    "str_replace_editor",
    "View and edit files. view shows a file with line numbers, or a folder; create writes a whole "
    "file; str_replace replaces text that occurs exactly once; insert adds lines after a line; "
    "undo_edit undoes the last edit of a file.",
    {
        "command": {
            "type": "string",
            "enum": ["view", "create", "str_replace", "insert", "undo_edit"],
            "description": "What to do.",
        },
        "path": {"type": "string", "description": "Absolute path of the file or folder."},
        "view_range": {
            "type": "array",
            "items": {"type": "integer"},
            "description": "For view: first and last line, counted from 1; -1 is the last line.",
        },
        "file_text": {"type": "string", "description": "For create: the file's whole text."},
        "old_str": {"type": "string", "description": "For str_replace: the text to replace."},
        "new_str": {
            "type": "string",
            "description": "For str_replace: the new text. For insert: the lines to insert.",
        },
        "insert_line": {
            "type": "integer",
            "description": "For insert: the line after which to insert; 0 for the beginning.",
        },
    },
    ["command", "path"],
)

SUBMIT: Schema = _function(
    "submit",
    "Declare that the task is done. The work is then graded; nothing can be changed afterwards.",
    {},
    [],
)

SCHEMAS: tuple[Schema, ...] = (BASH, EDITOR, SUBMIT)

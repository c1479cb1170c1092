"""Executes a model's tool calls by name: validates the arguments, limits the time, returns text."""

import json
from collections.abc import Mapping
from typing import Any

from sandboxkit import ConfigurationError, Sandbox
from sandboxkit.integrations._tools._bash import INTERRUPT, Bash, BashResult
from sandboxkit.integrations._tools._clock import Clock
from sandboxkit.integrations._tools._editor import Editor
from sandboxkit.integrations._tools._result import ToolError, ToolResult, refusal
from sandboxkit.integrations._tools._schemas import SCHEMAS
from sandboxkit.integrations._tools._truncate import truncate_middle

MARKER = "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
"""A script that succeeds and prints this as its first line submits the task."""

_LARGE = 1 << 63
# Any: isinstance() with a plain type would make the elements of a list unknown.
_TYPES: Mapping[str, tuple[Any, str]] = {
    "string": (str, "a string"),
    "integer": (int, "an integer"),
    "boolean": (bool, "true or false"),
    "array": (list, "a list"),
}
_COMMANDS: Mapping[str, tuple[str, ...]] = {
    "view": (),
    "create": ("file_text",),
    "str_replace": ("old_str",),
    "insert": ("insert_line", "new_str"),
    "undo_edit": (),
}


class Toolbox:
    """bash, str_replace_editor and submit in one sandbox.

    `timeout` limits each call, in seconds on `clock`; a script keeps running after it.
    `observation_limit` is the maximum length of a result in characters.
    """

    def __init__(
        self,
        sandbox: Sandbox,
        *,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        timeout: float = 60.0,
        observation_limit: int = 16_000,
        clock: Clock | None = None,
    ) -> None:
        if observation_limit <= 0:
            raise ConfigurationError(
                f"observation_limit={observation_limit!r} is not a positive number of characters"
            )
        self.bash = Bash(sandbox, cwd=cwd, env=env, timeout=timeout, clock=clock)
        self.editor = Editor(sandbox, timeout=timeout, clock=clock)
        self._timeout, self._limit = timeout, observation_limit

    async def close(self) -> None:
        """End the shell and every process in it."""
        await self.bash.close()

    # Any: arguments written by a model.
    async def call(self, name: str, arguments: str | Mapping[str, Any]) -> ToolResult:
        """Execute the tool call `name`; `arguments` is a JSON object, as text or parsed.

        A mistake of the model is returned as a result with `error` set. Raises infrastructure errors.
        """
        try:
            checked = _checked(name, arguments)
            result = await self._call(name, checked)
        except ToolError as error:
            result = refusal(error)
        text = truncate_middle(result.text, self._limit)
        return ToolResult(text, result.error, result.submitted)

    async def _call(self, name: str, arguments: Mapping[str, Any]) -> ToolResult:
        if name == "submit":
            return ToolResult("submitted", submitted=True)
        if name == "bash":
            return await self._bash(arguments["command"], arguments.get("as_input", False))
        return ToolResult(await self._edit(**arguments))

    async def _bash(self, command: str, as_input: bool) -> ToolResult:
        result = await self.bash.run(command, as_input=as_input)
        first, _, rest = result.output.lstrip().partition("\n")
        if result.returncode == 0 and first.strip() == MARKER:
            return ToolResult(rest or "submitted", submitted=True)
        return _format_result(result, self._timeout, self._limit)

    async def _edit(self, command: str, path: str, **given: Any) -> str:
        command = "undo_edit" if command == "undo" else command
        for name in _COMMANDS[command]:
            if name not in given:
                raise ToolError(f"{command} needs {name}")
        match command:
            case "view":
                return await self.editor.view(path, given.get("view_range"))
            case "create":
                return await self.editor.create(path, given["file_text"])
            case "str_replace":
                return await self.editor.str_replace(
                    path, given["old_str"], given.get("new_str", "")
                )
            case "insert":
                return await self.editor.insert(path, given["insert_line"], given["new_str"])
            case _:
                return await self.editor.undo_edit(path)


def _format_result(result: BashResult, timeout: float, limit: int) -> ToolResult:
    """Return a script's output in `limit` characters, with a note on its state unless it succeeded."""
    notes: list[str] = []
    if result.running:
        notes.append(
            f"still running; a call waits up to {timeout:g} s: an empty command waits for "
            f"more, the command {INTERRUPT} stops it, as_input types a command into it"
        )
    elif result.returncode:
        notes.append(f"exit status {result.returncode}")
    if result.ended:
        notes.append("the shell has ended: the next command starts a new one")
    if result.restarted:
        notes.append("the previous shell had ended: this command ran in a new one")
    if not notes:
        return ToolResult(result.output or "(no output)")
    note = f"[{'; '.join(notes)}]"
    output = truncate_middle(result.output, max(1, limit - len(note) - 1)) + "\n"
    return ToolResult(f"{output}{note}".lstrip(), error=result.returncode != 0)


def _checked(name: str, arguments: str | Mapping[str, Any]) -> dict[str, Any]:
    """Parse and validate the arguments against the schema; drop nulls. Raises ToolError."""
    tools = {schema["function"]["name"]: schema["function"] for schema in SCHEMAS}
    if not isinstance(name, str) or name not in tools:
        raise ToolError(f"there is no tool {str(name)[:80]!r}; there are {', '.join(tools)}")
    if isinstance(arguments, str):
        try:
            arguments = json.loads(arguments or "{}")
        except (ValueError, RecursionError) as error:
            raise ToolError(f"the arguments of {name} are not JSON: {error}") from None
    if not isinstance(arguments, Mapping):
        raise ToolError(f"the arguments of {name} are not an object")
    parameters = tools[name]["parameters"]
    given = {key: value for key, value in arguments.items() if value is not None}
    for key, value in given.items():
        _check(name, key, value, parameters["properties"])
    for key in parameters["required"]:
        if key not in given:
            raise ToolError(f"{name} needs {key}")
    return given


def _check(tool: str, key: str, value: Any, properties: Mapping[str, Any]) -> None:
    if key not in properties:
        known = ", ".join(properties) or "no arguments"
        raise ToolError(f"{tool} has no argument {str(key)[:80]!r}; it takes {known}")
    schema = properties[key]
    kind, called = _TYPES[schema["type"]]
    if not isinstance(value, kind) or isinstance(value, bool) is not (kind is bool):
        raise ToolError(f"{key} of {tool} is not {called}")
    integers = value if kind is list else [value] if kind is int else []
    if not all(type(item) is int and abs(item) < _LARGE for item in integers):
        raise ToolError(f"{key} of {tool} contains something other than line numbers")
    if "enum" in schema and value not in (*schema["enum"], "undo"):
        raise ToolError(f"{key}={value[:80]!r} is not one of {', '.join(schema['enum'])}")

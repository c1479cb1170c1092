"""Tool calls in a model's text, in the format that its chat template asks for.

Each format is read in linear time, because the text is written by a policy.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from sandboxkit.errors import ConfigurationError
from sandboxkit.integrations._tools import SCHEMAS

# Any: JSON that a model wrote.
Call = tuple[str, Mapping[str, Any]]
"""The name of a tool, and the arguments for it."""

_TYPES: dict[tuple[str, str], object] = {
    (schema["function"]["name"], name): parameter["type"]
    for schema in SCHEMAS
    for name, parameter in schema["function"]["parameters"]["properties"].items()
}
_LIST, _ARGUMENTS, _MESSAGE, _END = "[TOOL_CALLS]", "[ARGS]", "<|message|>", "<|"


@dataclass(frozen=True, slots=True)
class ToolCallFormat:
    """How the models of some families write a tool call."""

    name: str
    mark: str
    """A text that is in every chat template of this format."""
    find: Callable[[str], list[str]]
    """Return the calls of one turn, each as the model wrote it."""
    read: Callable[[str], Call]
    """Parse one call. Raises ValueError, KeyError, TypeError, AttributeError or RecursionError."""


def format_of(template: str) -> ToolCallFormat:
    """Return the format that a chat template asks for.

    It is Hermes for a template that renders no calls: then the prompts tell the model of its tools. Raises
    ConfigurationError if the template renders calls in none of `FORMATS`.
    """
    for each in FORMATS:
        if each.mark in template:
            return each
    if "tool_calls" not in template:
        return HERMES
    known = ", ".join(each.name for each in FORMATS)
    raise ConfigurationError(
        f"the chat template renders tool calls in none of these formats: {known}. Use a model whose template "
        "does, or rollout.max_turns=1"
    )


def _tagged(text: str) -> list[str]:
    """Return the texts between `<tool_call>` and `</tool_call>`."""
    opened, closed = "<tool_call>", "</tool_call>"
    found, end = list[str](), 0
    while (start := text.find(opened, end)) >= 0:
        start += len(opened)
        end = text.find(closed, start)
        if end < 0:
            break
        found.append(text[start:end])
    return found


def _whole(text: str) -> list[str]:
    """Return a text that is an object of JSON, up to its first special token."""
    text = text.strip().removeprefix("<|python_tag|>").lstrip()
    return [text.partition(_END)[0]] if text.startswith("{") else []


def _listed(text: str) -> list[str]:
    """Return what follows each `[TOOL_CALLS]`: one call, or a list of them."""
    found = list[str]()
    for part in text.split(_LIST)[1:]:
        part = part.partition("</s>")[0].strip()
        try:
            calls = json.loads(part) if part.startswith("[") else None
        except (ValueError, RecursionError):
            calls = None
        found += [json.dumps(each) for each in calls] if isinstance(calls, list) else [part]
    return found


def _channelled(text: str) -> list[str]:
    """Return each message to one of the functions, from the function's name on."""
    parts = text.split("to=functions.")[1:]
    return [part.partition("<|call|>")[0] for part in parts]


def _object(key: str) -> Callable[[str], Call]:
    """Return a reader of JSON objects with `name`, and the arguments under `key`."""

    def read(written: str) -> Call:
        wanted = json.loads(written)
        return _checked(wanted["name"], wanted.get(key, {}))

    return read


def _named(written: str) -> Call:
    """Read an object, or a name that is followed by the arguments."""
    if written.startswith("{"):
        return _object("arguments")(written)
    name, brace, rest = written.replace(_ARGUMENTS, "", 1).partition("{")
    return _checked(name.strip(), json.loads(brace + rest))


def _function(written: str) -> Call:
    """Read `<function=NAME>` with `<parameter=NAME>` elements, whose values have a line of their own."""
    opened, _, body = written.partition("<function=")[2].partition(">")
    arguments = dict[str, Any]()
    for part in body.split("<parameter=")[1:]:
        key, _, value = part.partition(">")
        value = value.partition("</parameter>")[0].removeprefix("\n").removesuffix("\n")
        arguments[key] = _typed(opened, key, value)
    return _checked(opened, arguments)


def _pairs(written: str) -> Call:
    """Read a name with `<arg_key>` and `<arg_value>` elements."""
    head, *parts = written.split("<arg_key>")
    name, arguments = head.strip(), dict[str, Any]()
    for part in parts:
        key, _, rest = part.partition("</arg_key>")
        value = rest.partition("<arg_value>")[2].partition("</arg_value>")[0]
        arguments[key] = _typed(name, key, value)
    return _checked(name, arguments)


def _message(written: str) -> Call:
    """Read a message to a function: its name, a header, and the arguments."""
    header, _, body = written.partition(_MESSAGE)
    return _checked(header.replace("<", " ").split(" ")[0], json.loads(body.partition(_END)[0]))


def _checked(name: object, arguments: object) -> Call:
    if not isinstance(name, str) or not isinstance(arguments, dict):
        raise TypeError("name is text, arguments are an object")
    if not name.replace("-", "_").isidentifier():
        raise ValueError("it has no name of a tool")
    return name, arguments


def _typed(name: str, key: str, value: str) -> object:
    """Return the value of a parameter: text if the tool wants text, else what it says as JSON."""
    if _TYPES.get((name, key), "string") == "string":
        return value
    try:
        return json.loads(value)
    except (ValueError, RecursionError):
        return value  # the tool refuses it by its name


HERMES = ToolCallFormat("Hermes", "<tool_call>", _tagged, _object("arguments"))
FORMATS = (
    ToolCallFormat("Qwen's XML", "<function=", _tagged, _function),
    ToolCallFormat("GLM's XML", "<arg_key>", _tagged, _pairs),
    ToolCallFormat("harmony", "<|channel|>", _channelled, _message),
    ToolCallFormat("Mistral's", _LIST, _listed, _named),
    HERMES,
    ToolCallFormat("Llama's", '"parameters": ', _whole, _object("parameters")),
)
"""From the most particular mark to the least."""

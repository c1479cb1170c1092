"""Reads the bodies of requests in bounds: how many values one may have, and how large a task may be."""

import json
import re
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from fastapi import HTTPException, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import BaseModel, ValidationError
from starlette.requests import ClientDisconnect

from sandboxkit import ConfigurationError
from sandboxkit.integrations._rows import with_lists
from sandboxkit.integrations._training.tasks import task_of
from sandboxkit.integrations.serve._workers import Workers

_MOST_VALUES = 100_000
"""Maximum number of values in a body, at any depth."""
_MOST_SOURCE = 1 << 20
"""Maximum number of characters in a task's tests."""
_MOST_TESTS = 2000
"""Maximum number of a task's tests and cases."""
_MOST_ERRORS = 20
_HERE = 16 << 10
"""Bytes of a body that are parsed in this process."""
_STRING = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?+', re.DOTALL)
_SOURCES = ("test_list", "test_setup_code", "test", "tests", "prompt", "cases")


def reading(workers: Workers) -> type[APIRoute]:
    """Return the class of routes whose bodies are parsed and validated off the loop if they are large."""

    class Read(APIRoute):
        def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
            handle, field = super().get_route_handler(), self.body_field

            async def handled(request: Request) -> Response:
                if field is not None and "json" in request.headers.get("content-type", ""):
                    try:
                        body = await request.body()
                    except ClientDisconnect as error:
                        raise HTTPException(400, "the client has disconnected") from error
                    if len(body) > _HERE:
                        model, name = field.field_info.annotation, request.state.client.name
                        found = await workers.run(name, _HERE, _read, model, body)
                        if isinstance(found, list):
                            raise RequestValidationError(found)
                        vars(request)["_json"] = found  # FastAPI takes a model as it is
                return await handle(request)

            return handled

    return Read


def _read(model: type[BaseModel], body: bytes) -> BaseModel | list[Any]:
    """Parse a body; return the first errors if it is no such model. Raises ConfigurationError."""
    _check_values(body)
    try:
        return model.model_validate(json.loads(body))
    except ValidationError as error:
        found = error.errors(include_url=False, include_context=False, include_input=False)
        return [{**each, "loc": ("body", *each["loc"])} for each in found[:_MOST_ERRORS]]
    except ValueError as error:
        raise ConfigurationError(f"the body is no JSON: {error}") from error


def _check_values(text: bytes) -> None:
    """Raise ConfigurationError for JSON of more values than the service parses."""
    outside = _STRING.sub(b"", text)
    if sum(map(outside.count, (b",", b":", b"[", b"{"))) > _MOST_VALUES:
        raise ConfigurationError(
            f"the JSON has more than {_MOST_VALUES} values: send less at a time"
        )


def read_label(label: dict[str, Any] | str) -> dict[str, Any]:
    """Return the task in a label. Raises ConfigurationError."""
    if isinstance(label, str):
        _check_values(label.encode(errors="replace"))
    return task_of(label)


def check_task(task: Mapping[str, Any]) -> None:  # Any: JSON that a client sent
    """Raise ConfigurationError for a task of more tests than the service parses."""
    for name in ("cases", "test_list"):
        if isinstance(text := task.get(name), str):
            _check_values(text.encode(errors="replace"))
    task = with_lists(task)
    for name in _SOURCES:
        value = task.get(name)
        lines = value if isinstance(value, list) else [value]
        texts = [each for each in lines if isinstance(each, str)]
        tests = sum(each.count("def test") for each in texts) if name == "tests" else len(lines)
        values = sum(each.count(mark) for each in texts for mark in ",[{(")
        for count, most, what in (
            (tests, _MOST_TESTS, "tests"),
            (values if name == "test_list" else 0, _MOST_VALUES, "values"),
            (sum(map(len, texts)), _MOST_SOURCE, "characters"),
        ):
            if count > most:
                raise ConfigurationError(
                    f"the task's {name} has {count} {what}: give at most {most}"
                )

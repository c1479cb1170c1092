"""Reads a grader's task from a mapping or its JSON, as trainers and clients send it."""

import json
from collections.abc import Mapping
from typing import Any

from sandboxkit import ConfigurationError


def task_of(truth: Any) -> dict[str, Any]:
    """Return the grader's task in `truth`, a mapping or the JSON text of one.

    NumPy arrays and scalars become lists and numbers, at any depth. Raises ConfigurationError if
    `truth` is neither.
    """
    value = _plain(truth)
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError as error:
            raise _no_task(truth) from error
    if not isinstance(value, dict):
        raise _no_task(truth)
    return value


def _no_task(truth: Any) -> ConfigurationError:
    return ConfigurationError(
        f"the ground truth {repr(truth)[:80]} is no task: give a mapping with the grader's keys, "
        'such as {"test_list": ["assert f(1) == 2"]}, or its JSON'
    )


def _plain(value: Any) -> Any:
    convert = getattr(value, "tolist", None)  # arrays and scalars of numpy
    if callable(convert):
        value = convert()
    if isinstance(value, Mapping):
        return {name: _plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(map(_plain, value)) if type(value) in (list, tuple) else value
    return value

"""Reads a grader's task from a mapping or its JSON, as trainers and clients send it."""

from typing import Any

from sandboxkit import ConfigurationError
from sandboxkit.integrations._rows import parsed


def task_of(truth: Any) -> dict[str, Any]:
    """Return the grader's task in `truth`, a mapping or its JSON in text or bytes.

    Arrays and scalars of data libraries become lists and numbers, at any depth. Raises ConfigurationError if
    `truth` is neither.
    """
    try:
        value = parsed(truth)
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

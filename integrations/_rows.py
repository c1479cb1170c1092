"""Rows of data sets as plain Python, whichever library they come from: NumPy, Arrow, pandas or Polars."""

import contextlib
import json
from collections.abc import Mapping
from typing import Any

from sandboxkit import ConfigurationError

_CONVERSIONS = ("as_py", "to_pylist", "tolist", "to_list")
"""Methods of arrays and scalars that return plain Python: Arrow's two, NumPy's and pandas', Polars'."""
_MISSING = ("NAType", "NaTType")
"""Types of pandas' values for missing data."""


# Any, throughout: values of a user's data set.
def plain(value: Any) -> Any:
    """Return a value whose arrays and scalars are lists and numbers, at any depth; pandas' NA is None."""
    if isinstance(value, type):
        return value
    if isinstance(value, bytearray | memoryview):
        return bytes(value)
    for name in _CONVERSIONS:
        convert = getattr(value, name, None)
        if callable(convert):
            value = convert()
            break
    if type(value).__name__ in _MISSING:
        return None
    if isinstance(value, Mapping):
        return {name: plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(map(plain, value)) if type(value) in (list, tuple) else value
    return value


def plain_row(row: Any) -> dict[str, Any]:
    """Return a row as a dict of plain values; NaN is None, and bytes in UTF-8 are text.

    A row is a mapping, a Series, a struct of Arrow or a named tuple. Raises ConfigurationError for anything else.
    """
    for name in ("as_py", "to_dict", "_asdict"):
        convert = getattr(row, name, None)
        if callable(convert) and getattr(row, "ndim", 1) == 1:  # not a DataFrame
            row = convert()
            break
    if not isinstance(row, Mapping):
        raise ConfigurationError(f"the row is a {type(row).__name__}: give a mapping")
    return {str(name): _column(plain(value)) for name, value in row.items()}


def parsed(value: Any) -> Any:
    """Return what JSON in text or bytes stands for, and any other value as plain Python. Raises ValueError."""
    value = plain(value)
    if isinstance(value, str | bytes):
        try:
            return json.loads(value)
        except RecursionError as error:
            raise ValueError("it is nested too deeply") from error
    return value


def with_lists(task: Mapping[str, Any]) -> dict[str, Any]:
    """Return a grader's task whose `cases` and `test_list` are lists where they were JSON in text.

    They are text in Parquet, whose columns cannot hold values of several types.
    """
    given = {name: task[name] for name in ("cases", "test_list") if isinstance(task.get(name), str)}
    for name, text in given.items():
        with contextlib.suppress(ValueError):
            value = parsed(text)
            given[name] = value if isinstance(value, list) else text
    return {**task, **given}


def _column(value: Any) -> Any:
    if isinstance(value, float) and value != value:
        return None
    if isinstance(value, bytes):
        with contextlib.suppress(UnicodeDecodeError):
            return value.decode()
    return value

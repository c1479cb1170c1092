"""Rows of data sets as plain Python: Parquet's columns arrive as arrays of NumPy."""

from collections.abc import Mapping
from typing import Any


def plain(value: Any) -> Any:
    """Return a value whose arrays and scalars of NumPy are lists and numbers, at any depth."""
    convert = getattr(value, "tolist", None)
    if callable(convert):
        value = convert()
    if isinstance(value, Mapping):
        return {name: plain(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(map(plain, value)) if type(value) in (list, tuple) else value
    return value

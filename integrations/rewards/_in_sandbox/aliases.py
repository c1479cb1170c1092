"""Find containers that occur more than once in a value. Runs in a sandbox."""

from __future__ import annotations

from typing import Any  # Any: values of every kind

_MUTABLE = (list, dict, set)
_NESTED = (*_MUTABLE, tuple)


class Alias:
    """A container that occurs several times in a value, by number; only its first Alias has `content`."""

    def __init__(self, number: int, content: Any) -> None:
        self.number, self.content = number, content


def with_aliases(value: Any) -> Any:
    """Return the value, or a copy with an Alias for each container that occurs more than once."""
    seen: set[int] = set()
    twice: set[int] = set()
    waiting = [value]
    while waiting:
        each = waiting.pop()
        if type(each) in _MUTABLE:
            if id(each) in seen:
                twice.add(id(each))
                continue
            seen.add(id(each))
        if type(each) is not set:
            parts = each.values() if type(each) is dict else each
            waiting.extend(part for part in parts if type(part) in _NESTED)
    return _marked(value, twice, {}) if twice else value


def _marked(value: Any, twice: set[int], numbers: dict[int, int]) -> Any:
    kind = type(value)
    if kind not in _NESTED:
        return value
    if id(value) in twice:
        number = numbers.get(id(value))
        if number is not None:
            return Alias(number, None)
        number = numbers[id(value)] = len(numbers)
        return Alias(number, (_copied(value, twice, numbers),))
    return _copied(value, twice, numbers)


def _copied(value: Any, twice: set[int], numbers: dict[int, int]) -> Any:
    if type(value) is dict:
        return {key: _marked(each, twice, numbers) for key, each in value.items()}
    if type(value) is set:
        return value
    return type(value)(_marked(each, twice, numbers) for each in value)

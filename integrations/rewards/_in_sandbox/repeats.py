"""Detect functions whose results differ between equal calls. Runs in the judge's sandbox.

A test may call a function twice and check one property of the result after each call. A function that
counts its calls could cheat by returning a different result each time.
"""

from __future__ import annotations

import json
import re
from typing import Any  # Any: JSON

_MOST = 10_000
_NUMBER = re.compile(r'\["object", \d+\]')
_UNCLEAR = re.compile(r'\["(?:function|iterator|coroutine|class|module|callback|handle)", ')
_UNORDERED = ("set", "frozenset", "dict", "counter")


class Repeats:
    """The results of one function by its arguments, until another function is called.

    `varies` is True, or the names of functions that may return different results for equal calls.
    """

    def __init__(self, varies: Any) -> None:
        self._varies = varies
        self._function = ""
        self._answers: dict[str, str] = {}

    def clear(self) -> None:
        """Forget the results, because something happened that may change them."""
        self._answers.clear()

    def differs(self, function: str, args: Any, named: Any, answer: Any) -> bool:
        """Return whether a function returned a different result for equal arguments before."""
        if self._varies is True or function in (self._varies or ()) or not (args or named):
            return False
        if function != self._function:
            self.clear()
            self._function = function
        key, text = json.dumps([args, named]), _comparable_text(answer)
        if text is None or _UNCLEAR.search(key) or len(self._answers) > _MOST:
            return False
        return self._answers.setdefault(key, text) != text


def _comparable_text(answer: Any) -> str | None:
    """Return a text that is equal for equal results; None for a result that cannot be compared."""
    if answer[0] == "raised":
        return str(answer[2][0])
    if answer[0] != "value":
        return None
    objects = [[entry[1], *entry[4:]] for entry in answer[-1].get("objects", [])]
    text = _NUMBER.sub('["object"]', json.dumps(_sorted([answer[1], objects])))
    return None if _UNCLEAR.search(text) else text


def _sorted(wire: Any) -> Any:
    if isinstance(wire, dict):
        return {name: _sorted(wire[name]) for name in sorted(wire)}
    if not isinstance(wire, list):
        return wire
    if len(wire) == 2 and wire[0] in _UNORDERED and isinstance(wire[1], list):
        return [wire[0], sorted((_sorted(each) for each in wire[1]), key=json.dumps)]
    return [_sorted(each) for each in wire]

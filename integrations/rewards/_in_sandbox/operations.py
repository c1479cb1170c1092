"""The operations that tests can apply to an object of the submission. Runs in a sandbox."""

from __future__ import annotations

import builtins
import operator
from typing import Any  # Any: values of every kind


def _call(function: Any, *args: Any, **kwargs: Any) -> Any:
    return function(*args, **kwargs)


def _method(value: Any, name: str, *args: Any, **kwargs: Any) -> Any:
    return getattr(value, name)(*args, **kwargs)


def _exit(value: Any, ancestors: list[str] | None, text: str) -> Any:
    """Leave a `with` block, with the exception that the tests raised in it, if any."""
    return type(value).__exit__(value, *_leaving(ancestors, text))


def _aexit(value: Any, ancestors: list[str] | None, text: str) -> Any:
    return type(value).__aexit__(value, *_leaving(ancestors, text))


def _leaving(ancestors: list[str] | None, text: str) -> tuple[Any, Any, Any]:
    if ancestors is None:
        return None, None, None
    error = exception(None, ancestors, [text], text)
    return type(error), error, None


def exception(kind: Any, ancestors: list[str], args: list[Any], text: str) -> BaseException:
    """Return the tests' exception as an instance of `kind`, or of the nearest builtin class."""
    kinds: list[Any] = [kind] if kind is not None else [vars(builtins).get(n) for n in ancestors]
    for each in kinds:
        if isinstance(each, type) and issubclass(each, BaseException):
            try:
                return each(*args)
            except TypeError:  # its __init__ takes other arguments than `args` holds
                break
    return RuntimeError(text)


def _ordered(name: str, left: Any, right: Any) -> list[bool]:
    """Return whether the comparison `name`, "lt" or "gt", holds for left and right, and for right and left."""
    compare = getattr(operator, name)
    return [bool(compare(left, right)), bool(compare(right, left))]


def _signature(function: Any) -> list[list[Any]]:
    """Return a function's parameters: name, kind, and any default value."""
    import inspect

    found = []
    for each in inspect.signature(function).parameters.values():
        default = [] if each.default is each.empty else [each.default]
        found.append([each.name, int(each.kind), default])
    return found


def _next(value: Any) -> Any:
    return type(value).__next__(value)


def _deepcopy(value: Any) -> Any:
    import copy

    return copy.deepcopy(value)


OPERATIONS: dict[str, Any] = {
    "call": _call,
    "method": _method,
    "step": _method,
    "exit": _exit,
    "aexit": _aexit,
    "signature": _signature,
    "deepcopy": _deepcopy,
    "snapshot": lambda value: value,
    "compare": lambda left, right: [bool(left == right), left, right],
    "lt": lambda left, right: _ordered("lt", left, right),
    "gt": lambda left, right: _ordered("gt", left, right),
    "next": _next,
    "vars": lambda value: dict(vars(value)),
    "enter": lambda value: type(value).__enter__(value),
    "aenter": lambda value: type(value).__aenter__(value),
    "aiter": lambda value: type(value).__aiter__(value),
    "anext": lambda value: type(value).__anext__(value),
    "getattr": getattr,
    "setattr": setattr,
    "delattr": delattr,
    "iter": iter,
    "reversed": reversed,
    "len": len,
    "hash": hash,
    "bool": bool,
    "repr": repr,
    "str": str,
    "int": int,
    "float": float,
    "complex": complex,
    "round": round,
    "format": format,
}
"""The function for each operation name; it gets the arguments that the tests pass."""
OPERATIONS.update(
    {
        each.__name__.strip("_"): each
        for each in (
            *(operator.getitem, operator.setitem, operator.delitem, operator.contains),
            *(operator.index, operator.le, operator.ge),
            *(operator.neg, operator.pos, operator.abs, operator.invert),
            *(operator.add, operator.sub, operator.mul, operator.matmul, operator.truediv),
            *(operator.floordiv, operator.mod, operator.pow),
            *(operator.lshift, operator.rshift, operator.and_, operator.or_, operator.xor),
            *(operator.iadd, operator.isub, operator.imul, operator.imatmul, operator.itruediv),
            *(operator.ifloordiv, operator.imod, operator.ipow),
            *(operator.ilshift, operator.irshift, operator.iand, operator.ior, operator.ixor),
        )
    }
)

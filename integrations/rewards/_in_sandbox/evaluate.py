"""Runs in a sandbox: loads a submission, evaluates one expression or test, sends the value out.

The job is one JSON object on stdin; the answer is one JSON line on what was stdout at the start.
The submission shares this process and can forge the answer. That gains it nothing: an answer is
only a claimed value, and what it is compared with is not in the sandbox.
"""

from __future__ import annotations

import json
import os
import sys
import types
from typing import Any

MAX_DEPTH = 60


def encode(value: Any, depth: int = 0) -> list[Any]:
    """Write plain data as nested JSON lists, each with its type's name first.

    A subclass is written as its plain base. What is not plain data is ["opaque", type], which
    equals nothing.
    """
    if depth > MAX_DEPTH:
        return ["opaque", "nested too deeply"]
    if value is None:
        return ["none"]
    if isinstance(value, bool):
        return ["bool", bool(value)]
    if isinstance(value, int):
        return ["int", hex(int.__index__(value))]
    if isinstance(value, float):
        return ["float", float.hex(value)]
    if isinstance(value, complex):
        return ["complex", float.hex(value.real), float.hex(value.imag)]
    if isinstance(value, str):
        return ["str", str.__str__(value)]
    if isinstance(value, (bytes, bytearray)):
        return ["bytes", bytes(value).hex()]
    if isinstance(value, range):
        return ["range", [encode(part) for part in (value.start, value.stop, value.step)]]
    return _encode_container(value, depth)


def _encode_container(value: Any, depth: int) -> list[Any]:
    if isinstance(value, dict):
        pairs = dict.items(value)
        return ["dict", [[encode(k, depth + 1), encode(v, depth + 1)] for k, v in pairs]]
    if isinstance(value, list):
        return ["list", [encode(each, depth + 1) for each in value]]
    if isinstance(value, tuple):
        return ["tuple", [encode(each, depth + 1) for each in value]]
    if isinstance(value, (set, frozenset, type({}.keys()))):
        return ["set", [encode(each, depth + 1) for each in value]]
    return _encode_other(value, depth)


def _encode_other(value: Any, depth: int) -> list[Any]:
    module, name = type(value).__module__, type(value).__name__
    if (module, name) == ("collections", "deque"):
        return ["deque", [encode(each, depth + 1) for each in value]]
    if (module, name) == ("decimal", "Decimal"):
        return ["decimal", str(value)]
    if (module, name) == ("fractions", "Fraction"):
        return ["fraction", hex(value.numerator), hex(value.denominator)]
    if module == "datetime" and hasattr(value, "isoformat"):
        return ["datetime", name, value.isoformat()]
    if module == "numpy" and getattr(value, "ndim", 1) == 0:
        return encode(value.item(), depth + 1)
    return ["opaque", f"{module}.{name}"]


def _answer(job: dict[str, Any]) -> list[Any]:
    module = types.ModuleType(job["module"])
    sys.modules[job["module"]] = module
    names = module.__dict__
    phase = "loading"
    try:
        exec(compile(job["code"], f"{job['module']}.py", "exec"), names)
        phase = "setup"
        exec(compile(job["setup"], "setup.py", "exec"), names)
        phase = "running"
        if job["expression"]:
            return ["value", encode(eval(compile(job["source"], "case.py", "eval"), names))]
        exec(compile(job["source"], "case.py", "exec"), names)
        return ["value", ["bool", True]]
    except MemoryError:
        return ["memory"]
    except BaseException as error:  # noqa: BLE001 - SystemExit and all: it is the submission's end
        if phase == "running" and not job["expression"] and type(error) is AssertionError:
            return ["value", ["bool", False]]
        return ["raised", phase, type(error).__name__, str(error)[:500]]


def main() -> None:
    """Do the one job."""
    job = json.load(sys.stdin)
    channel = os.dup(1)
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(null, descriptor)
    data = json.dumps(_answer(job)).encode() + b"\n"
    while data:
        data = data[os.write(channel, data) :]
    os._exit(0)


if __name__ == "__main__":
    main()

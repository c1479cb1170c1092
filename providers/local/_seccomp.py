"""Compiles the pinned seccomp profile (Docker's JSON format) to the BPF that bubblewrap loads."""

import functools
import json
import platform
import struct
from pathlib import Path
from typing import Any

from sandboxkit.errors import ConfigurationError

_PROFILE = Path(__file__).parent.parent / "_agent" / "seccomp.json"
_NUMBERS = Path(__file__).parent / "syscalls.json"
_ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_X32_BIT = 0x40000000

# linux/filter.h and linux/seccomp.h
_LOAD, _JEQ, _JGE, _JGT, _AND, _RET = 0x20, 0x15, 0x35, 0x25, 0x54, 0x06
_ALLOW, _ERRNO, _KILL_PROCESS = 0x7FFF0000, 0x00050000, 0x80000000
_NR, _ARCH, _ARGS = 0, 4, 16

_Program = list[tuple[int, int, int, int]]


@functools.cache
def filter_bytes() -> bytes:
    """The filter for this machine, as an array of struct sock_filter."""
    machine = platform.machine()
    if machine not in _ARCHITECTURES:
        raise ConfigurationError(f"the local provider has no seccomp filter for {machine!r}")
    profile = json.loads(_PROFILE.read_text())
    numbers = json.loads(_NUMBERS.read_text())[machine]
    program = _compile(profile, numbers, _ARCHITECTURES[machine])
    return b"".join(struct.pack("=HBBI", *instruction) for instruction in program)


# Any: the profile is JSON of a known shape that ships with us.
def _compile(profile: dict[str, Any], numbers: dict[str, int], arch: int) -> _Program:
    plain: set[int] = set()
    special: dict[int, _Program] = {}
    for rule in profile["syscalls"]:
        allow = rule["action"] == "SCMP_ACT_ALLOW"
        action = _ALLOW if allow else _ERRNO | rule["errnoRet"]
        for number in (numbers[name] for name in rule["names"] if name in numbers):
            if allow and not rule["args"]:
                plain.add(number)
            else:
                special.setdefault(number, []).extend(_rule(rule["args"], action))
    program: _Program = [
        (_LOAD, 0, 0, _ARCH),
        (_JEQ, 1, 0, arch),
        (_RET, 0, 0, _KILL_PROCESS),
        (_LOAD, 0, 0, _NR),
        (_JGE, 0, 1, _X32_BIT),
        (_RET, 0, 0, _ERRNO | profile["defaultErrnoRet"]),
    ]
    for low, high in _ranges(sorted(plain)):
        program += [(_JGE, 0, 2, low), (_JGT, 1, 0, high), (_RET, 0, 0, _ALLOW)]
    for number, block in special.items():
        program += [(_JEQ, 0, len(block) + 1, number), *block, (_LOAD, 0, 0, _NR)]
    return [*program, (_RET, 0, 0, _ERRNO | profile["defaultErrnoRet"])]


def _rule(args: list[dict[str, Any]], action: int) -> _Program:
    """Return `action` if every argument matches, else fall through."""
    checks: _Program = []
    for arg in args:
        offset, value = _ARGS + 8 * arg["index"], arg["value"]
        if arg["op"] == "SCMP_CMP_EQ":
            checks += [(_LOAD, 0, 0, offset), (_JEQ, 0, -1, value & 0xFFFFFFFF)]
        else:  # SCMP_CMP_MASKED_EQ, on the low word, where all flags of clone(2) are
            checks += [
                (_LOAD, 0, 0, offset),
                (_AND, 0, 0, value & 0xFFFFFFFF),
                (_JEQ, 0, -1, arg["valueTwo"]),
            ]
    end = len(checks)
    resolved = [
        (code, jt, end - position if jf == -1 else jf, k)
        for position, (code, jt, jf, k) in enumerate(checks)
    ]
    return [*resolved, (_RET, 0, 0, action)]


def _ranges(numbers: list[int]) -> list[tuple[int, int]]:
    ranges: list[tuple[int, int]] = []
    for number in numbers:
        if ranges and ranges[-1][1] == number - 1:
            ranges[-1] = (ranges[-1][0], number)
        else:
            ranges.append((number, number))
    return ranges

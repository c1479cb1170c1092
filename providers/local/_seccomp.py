"""The pinned seccomp profile as a BPF program, made from Docker's JSON format without libseccomp."""

import errno
import json
import platform
import struct
from functools import cache
from pathlib import Path
from typing import Any

from sandboxkit.errors import ConfigurationError
from sandboxkit.providers import _agent

_PROFILE = Path(_agent.__file__).with_name("seccomp.json")
_NUMBERS = Path(__file__).with_name("syscalls.json")

_AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_X32_BIT = 0x40000000

_LOAD, _JUMP_EQ, _JUMP_GT, _JUMP_GE, _AND, _RETURN = 0x20, 0x15, 0x25, 0x35, 0x54, 0x06
_NUMBER_AT, _ARCH_AT, _ARGS_AT = 0, 4, 16

_NO_CALLS = range(336, 424)
"""Numbers that no architecture uses."""

_KILL_PROCESS, _ERRNO, _ASK, _ALLOW = 0x80000000, 0x00050000, 0x7FC00000, 0x7FFF0000


def _op(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, value)


def _action(name: str, errno: int) -> int:
    if name == "SCMP_ACT_ALLOW":
        return _ALLOW
    if name == "SCMP_ACT_NOTIFY":
        return _ASK
    if name == "SCMP_ACT_ERRNO":
        return _ERRNO | errno
    raise ValueError(f"seccomp action {name!r} is not supported")


def _argument_tests(args: list[dict[str, Any]]) -> list[tuple[int, int, int]]:
    """Return the tests of a rule's arguments: (offset of a 32-bit word, mask, expected value)."""
    tests = []
    for arg in args:
        if arg["op"] == "SCMP_CMP_EQ":
            mask, value = (1 << 64) - 1, int(arg["value"])
        elif arg["op"] == "SCMP_CMP_MASKED_EQ":
            mask, value = int(arg["value"]), int(arg["valueTwo"])
        else:
            raise ValueError(f"seccomp comparison {arg['op']!r} is not supported")
        for half in range(2):  # both architectures are little-endian
            word_mask = mask >> 32 * half & 0xFFFFFFFF
            if word_mask:
                at = _ARGS_AT + 8 * int(arg["index"]) + 4 * half
                tests.append((at, word_mask, value >> 32 * half & 0xFFFFFFFF))
    return tests


def _conditional(number: int, tests: list[tuple[int, int, int]], action: int) -> bytes:
    """Return code that applies `action` if this call passes all tests.

    The accumulator holds the call's number before and after the code.
    """
    body: list[bytes] = []
    for position, (at, mask, value) in enumerate(tests):
        # Skip the remaining tests, of three instructions each, and the return.
        to_end = 3 * (len(tests) - position - 1) + 1
        body += [_op(_LOAD, at), _op(_AND, mask), _op(_JUMP_EQ, value, 0, to_end)]
    body.append(_op(_RETURN, action))
    if tests:
        body.append(_op(_LOAD, _NUMBER_AT))
    return _op(_JUMP_EQ, number, 0, len(body)) + b"".join(body)


def _always(numbers: list[int], action: int) -> bytes:
    """Return code that applies `action` to these calls, compared as ranges."""
    ranges: list[list[int]] = []
    for number in sorted(numbers):
        if ranges and ranges[-1][1] == number - 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    code = []
    for low, high in ranges:
        code += [_op(_JUMP_GE, low, 0, 2), _op(_JUMP_GT, high, 1, 0), _op(_RETURN, action)]
    return b"".join(code)


def compile_profile(profile: dict[str, Any], numbers: dict[str, int], audit_arch: int) -> bytes:
    """Return the BPF program for one architecture; `numbers` maps its system calls to their numbers."""
    code = [
        _op(_LOAD, _ARCH_AT),
        _op(_JUMP_EQ, audit_arch, 1, 0),
        _op(_RETURN, _KILL_PROCESS),
        _op(_LOAD, _NUMBER_AT),
    ]
    if audit_arch == _AUDIT_ARCH["x86_64"]:
        code += [_op(_JUMP_GE, _X32_BIT, 0, 1), _op(_RETURN, _KILL_PROCESS)]
    always: dict[int, list[int]] = {}
    for rule in profile["syscalls"]:
        action = _action(rule["action"], int(rule.get("errnoRet", profile["defaultErrnoRet"])))
        tests = _argument_tests(rule.get("args") or [])
        known = [numbers[name] for name in rule["names"] if name in numbers]
        if tests:
            code += [_conditional(number, tests, action) for number in known]
        else:
            always.setdefault(action, []).extend(known)
    # A program then does without a call that the profile does not know, as on an older kernel.
    absent = _ERRNO | errno.ENOSYS
    always.setdefault(absent, []).extend(_NO_CALLS)
    code += [_always(found, action) for action, found in always.items()]
    code += [_op(_JUMP_GT, max(numbers.values()), 0, 1), _op(_RETURN, absent)]
    code.append(_op(_RETURN, _action(profile["defaultAction"], int(profile["defaultErrnoRet"]))))
    return b"".join(code)


@cache
def program(profile: str | None = None) -> bytes:
    """Return the BPF program for this machine of a profile in JSON; None: the pinned one.

    Raises ConfigurationError unless this is x86_64 or aarch64.
    """
    machine = {"amd64": "x86_64", "arm64": "aarch64"}.get(platform.machine(), platform.machine())
    if machine not in _AUDIT_ARCH:
        raise ConfigurationError(
            f"no seccomp profile for {machine!r}: the local provider needs x86_64 or aarch64"
        )
    rules = json.loads(_PROFILE.read_bytes() if profile is None else profile)
    numbers = json.loads(_NUMBERS.read_bytes())[machine]
    return compile_profile(rules, numbers, _AUDIT_ARCH[machine])

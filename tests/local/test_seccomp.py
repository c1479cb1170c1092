"""The compiled seccomp profile, run through an interpreter of its instructions."""

import errno
import json
import struct
from pathlib import Path

import pytest

from sandboxkit.providers import _agent
from sandboxkit.providers.local import _seccomp

PROFILE = json.loads(Path(_agent.__file__).with_name("seccomp.json").read_bytes())
NUMBERS = json.loads(Path(_seccomp.__file__).with_name("syscalls.json").read_bytes())
ALLOW, KILL = 0x7FFF0000, 0x80000000
ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}


def interpret(program: bytes, arch: int, number: int, *args: int) -> int:
    """What the kernel would do with this call."""
    data = struct.pack("=iIQ6Q", number, arch, 0, *(args + (0,) * 6)[:6])
    code = [struct.unpack_from("=HBBI", program, at) for at in range(0, len(program), 8)]
    at = accumulator = 0
    while True:
        operation, if_true, if_false, value = code[at]
        at += 1
        if operation == 0x20:
            (accumulator,) = struct.unpack_from("=I", data, value)
        elif operation == 0x54:
            accumulator &= value
        elif operation == 0x06:
            return int(value)
        else:
            test = {
                0x15: accumulator == value,
                0x25: accumulator > value,
                0x35: accumulator >= value,
            }[operation]
            at += if_true if test else if_false


@pytest.fixture(params=ARCHITECTURES)
def arch(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def program(arch: str) -> bytes:
    return _seccomp.compile_profile(PROFILE, NUMBERS[arch], ARCHITECTURES[arch])


def test_every_call_is_as_in_the_profile(arch: str, program: bytes) -> None:
    always = {
        name
        for rule in PROFILE["syscalls"]
        if not rule["args"] and rule["action"] == "SCMP_ACT_ALLOW"
        for name in rule["names"]
    }
    allowed = {NUMBERS[arch][name] for name in always if name in NUMBERS[arch]}
    absent = NUMBERS[arch]["io_setup"]  # one budget for the machine: programs go on without it
    assert interpret(program, ARCHITECTURES[arch], absent) == 0x00050000 | errno.ENOSYS
    special = {NUMBERS[arch][name] for name in ("socket", "clone", "clone3", "personality")}
    for number in set(range(600)) - special - {absent}:
        expected = ALLOW if number in allowed else 0x00050000 | 1
        assert interpret(program, ARCHITECTURES[arch], number) == expected, number


def test_arguments_decide(arch: str, program: bytes) -> None:
    def call(name: str, *args: int) -> int:
        return interpret(program, ARCHITECTURES[arch], NUMBERS[arch][name], *args)

    for family in (1, 2, 10, 16):
        assert call("socket", family) == ALLOW
    for family in (17, 38, 40, 1 << 32 | 1):
        assert call("socket", family) == 0x00050001
    assert call("clone", 0x003D0F00) == ALLOW
    for flag in (0x20000, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000):
        assert call("clone", 0x003D0F00 | flag) == 0x00050001
    assert call("clone3") == 0x00050000 | 38
    assert call("personality", 0xFFFFFFFF) == ALLOW
    assert call("personality", 0x0040000) == 0x00050001


def test_calls_of_other_architectures_are_fatal(arch: str, program: bytes) -> None:
    other = next(value for name, value in ARCHITECTURES.items() if name != arch)
    assert interpret(program, other, 0) == KILL
    assert interpret(program, 0x40000003, 1) == KILL
    if arch == "x86_64":
        assert interpret(program, ARCHITECTURES[arch], 0x40000000) == KILL


def test_every_name_has_a_number() -> None:
    names = {name for rule in PROFILE["syscalls"] for name in rule["names"]}
    assert names <= NUMBERS["x86_64"].keys()
    assert {"openat", "clone", "socket", "execve"} <= NUMBERS["aarch64"].keys()

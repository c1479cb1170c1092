"""Extraction of one self-contained function of a program into a minimal executable."""

import struct

__all__ = ["only"]

_HEADER = struct.Struct("<16sHHIQQQIHHHHHH")
_SEGMENT = struct.Struct("<IIQQQQQQ")
_SECTION = struct.Struct("<IIQQQQIIQQ")
_SYMBOL = struct.Struct("<IBBHQQ")
_BASE = 0x400000
_LOAD, _STACK = 1, 0x6474E551
_READ_EXECUTE, _READ_WRITE = 5, 6
_SYMBOLS = 2


def only(program: bytes, name: str) -> bytes:
    """Return a static 64-bit ELF executable that holds only the function `name` of `program`.

    Raises ValueError if there is no such function.
    """
    header = _HEADER.unpack_from(program)
    first, size, count = header[6], header[11], header[12]
    sections = [_SECTION.unpack_from(program, first + i * size) for i in range(count)]
    for kind, at, length, names in ((s[1], s[4], s[5], s[6]) for s in sections):
        if kind != _SYMBOLS:
            continue
        strings = sections[names][4]
        for place in range(at, at + length, _SYMBOL.size):
            text, _, _, section, value, span = _SYMBOL.unpack_from(program, place)
            start = strings + text
            if program[start : program.index(b"\0", start)] == name.encode():
                home = sections[section]
                begin = home[4] + value - home[3]
                return _executable(program[begin : begin + span], header)
    raise ValueError(f"no function {name}")


def _executable(code: bytes, like: tuple[int, ...]) -> bytes:
    offset = _HEADER.size + 2 * _SEGMENT.size
    size = offset + len(code)
    header = _HEADER.pack(
        like[0],
        2,
        like[2],
        1,
        _BASE + offset,
        _HEADER.size,
        0,
        0,
        _HEADER.size,
        _SEGMENT.size,
        2,
        0,
        0,
        0,
    )
    load = _SEGMENT.pack(_LOAD, _READ_EXECUTE, 0, _BASE, _BASE, size, size, 0x10000)
    stack = _SEGMENT.pack(_STACK, _READ_WRITE, 0, 0, 0, 0, 0, 16)
    return header + load + stack + code

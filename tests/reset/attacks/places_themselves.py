"""Attacks on the writable places themselves, which a reset cannot remove."""

import fcntl
import os
import struct
from contextlib import suppress

from tests.reset.attacks.means import MARK, attack, owned, places

_SETFLAGS = 0x40086602


@attack("local")
def closed_places() -> None:
    for place in owned():
        with suppress(OSError):
            os.chmod(place, 0)


@attack("local")
def open_places() -> None:
    """Without the sticky bit, and with a group that is inherited."""
    for place in owned():
        with suppress(OSError):
            os.chmod(place, 0o2777)


@attack("local")
def closed_terminals() -> None:
    with suppress(OSError):
        os.chmod("/dev/pts/ptmx", 0)
    with suppress(OSError):
        os.chmod("/dev/pts", 0)


@attack("local")
def times_of_places() -> None:
    for place in owned():
        with suppress(OSError):
            os.utime(place, (1e9, 1e9))


@attack("local")
def attributes_of_places() -> None:
    for place in owned():
        with suppress(OSError):
            os.setxattr(place, "user.mark", MARK.encode())


@attack("local")
def access_lists_of_places() -> None:
    """What is made in them from now on may be written by everybody, or by nobody."""
    entries = [(1, 0, 2**32 - 1), (4, 0, 2**32 - 1), (16, 7, 2**32 - 1), (32, 7, 2**32 - 1)]
    entries.insert(1, (2, 7, os.getuid()))
    value = struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)
    for place in owned():
        with suppress(OSError):
            os.setxattr(place, "system.posix_acl_default", value)


@attack("local")
def flags_of_places() -> None:
    for place in owned():
        with suppress(OSError):
            descriptor = os.open(place, os.O_RDONLY)
            fcntl.ioctl(descriptor, _SETFLAGS, struct.pack("l", 0x40 | 0x80))


@attack("")
def places_replaced() -> None:
    """They are mounts."""
    for place in places():
        for work in (os.rmdir, lambda path: os.rename(path, f"{path}.old")):
            with suppress(OSError):
                work(place)
                raise AssertionError(f"{place} was replaced")

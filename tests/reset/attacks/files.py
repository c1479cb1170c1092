"""Attacks that leave files, of every kind and in every writable place."""

import fcntl
import os
import shutil
import socket
import stat
import struct
import sys
from contextlib import suppress

from tests.reset.attacks.means import MARK, attack, daemon, refused, stores


def _write(path: str, text: str = MARK) -> None:
    with open(path, "w") as file:
        file.write(text)


@attack("local docker")
def files_everywhere() -> None:
    for place in stores():
        _write(f"{place}/{MARK}")


@attack("local docker")
def hidden_files() -> None:
    for place in stores():
        for name in (".bashrc", ".profile", ".bash_history", ".python_history", ".pdbrc", "..."):
            _write(f"{place}/{name}", f"echo {MARK}\n")


@attack("local docker")
def locked_folders() -> None:
    for place in stores():
        folder = place
        for name in ("one", "two", "three"):
            folder = f"{folder}/{name}"
            os.mkdir(folder)
            _write(f"{folder}/{MARK}")
        for _ in range(3):
            os.chmod(folder, 0)
            folder = os.path.dirname(folder)


@attack("local docker")
def odd_names() -> None:
    names = [b"-rf", b"--", b"new\nline", b"\xff\xfe\x80", b" ", b"\x01\x1b[31m", b"*", b"\\", b"'"]
    for place in stores():
        for name in (*names, "ü".encode(), "\u202e".encode(), b"a;b", b"$(x)", b"%n%s", b"..."):
            os.mkdir(os.path.join(place.encode(), name))
            with open(os.path.join(place.encode(), name, name), "wb") as file:
                file.write(name)


@attack("local docker")
def longest_names() -> None:
    for place in stores():
        folder = place
        for letter in "abcdefgh":
            folder = f"{folder}/{letter * 255}"
            os.mkdir(folder)
        _write(f"{folder}/{'z' * 255}")


@attack("local docker", costs="local docker")
def a_tree_deeper_than_a_path() -> None:
    here = os.getcwd()
    for _ in range(6000):
        os.mkdir("deep")
        os.chdir("deep")
    _write(MARK)
    os.chdir(here)


@attack("local docker")
def a_hundred_thousand_files() -> None:
    """Where there are so many inodes."""
    for folder in (os.getcwd(), "/tmp"):
        with suppress(OSError):
            for number in range(50_000):
                os.close(os.open(f"{folder}/{number}", os.O_CREAT | os.O_WRONLY))


@attack("local docker")
def sparse_files() -> None:
    for place in stores():
        with open(f"{place}/sparse", "wb") as file:
            file.truncate(1 << 40)


@attack("local docker")
def full_disks() -> None:
    block = bytes(1 << 20)
    for place in stores():
        with open(f"{place}/full", "wb", buffering=0) as file, suppress(OSError):
            while file.write(block) == len(block):
                pass


@attack("local docker")
def links_to_everywhere() -> None:
    for place in stores():
        for number, target in enumerate(("/", "/usr", "/proc/self", "..", ".", "/dev/null", place)):
            os.symlink(target, f"{place}/link{number}")
        os.symlink("loop", f"{place}/loop")
        os.mkdir(f"{place}/linked")
        os.symlink("../linked", f"{place}/linked/again")


@attack("local docker")
def hard_links() -> None:
    for place in stores():
        _write(f"{place}/original")
        for number in range(500):
            os.link(f"{place}/original", f"{place}/hard{number}")
        for system in ("/etc/passwd", sys.executable, "/proc/self/status", "/dev/null"):
            with refused():
                os.link(system, f"{place}/system")


@attack("local docker")
def pipes_and_sockets() -> None:
    for place in stores():
        os.mkfifo(f"{place}/pipe")
        with socket.socket(socket.AF_UNIX) as bound:
            bound.bind(f"{place}/socket")


@attack("local docker")
def nodes() -> None:
    for place in stores():
        os.mknod(f"{place}/whiteout", stat.S_IFCHR, 0)
        with refused():
            os.mknod(f"{place}/null", stat.S_IFCHR | 0o666, os.makedev(1, 3))


@attack("local docker")
def bits() -> None:
    for place in stores():
        _write(f"{place}/program")
        os.chmod(f"{place}/program", 0o6777)
        os.mkdir(f"{place}/folder")
        os.chmod(f"{place}/folder", 0o3777)
        _write(f"{place}/unreadable")
        os.chmod(f"{place}/unreadable", 0)
        os.utime(f"{place}/unreadable", (4e9, 4e9))


@attack("local docker")
def attributes_of_files() -> None:
    """Extended ones, access lists and what chattr sets."""
    entries = struct.pack("<IHHIHHIHHI", 2, 1, 0, 2**32 - 1, 4, 0, 2**32 - 1, 32, 0, 2**32 - 1)
    for place in stores():
        folder = f"{place}/folder"
        os.mkdir(folder)
        _write(f"{folder}/{MARK}")
        with suppress(OSError):
            os.setxattr(folder, "user.mark", MARK.encode())
        with suppress(OSError):
            os.setxattr(folder, "system.posix_acl_default", entries)
            os.setxattr(folder, "system.posix_acl_access", entries)
        for flag in (0x40, 0x80, 0x20, 0x10):  # no dump, no access time; append, immutable: refused
            with suppress(OSError):
                descriptor = os.open(folder, os.O_RDONLY)
                fcntl.ioctl(descriptor, 0x40086602, struct.pack("l", flag))


@attack("local docker")
def held_and_unlinked() -> None:
    """Space that only an open descriptor holds."""

    def hold() -> None:
        for place in stores():
            descriptor = os.open(f"{place}/held", os.O_CREAT | os.O_RDWR)
            os.write(descriptor, bytes(4 << 20))
            os.unlink(f"{place}/held")

    daemon(hold)


@attack("local docker")
def held_folders() -> None:
    """A process stands in a folder that is gone, and another one writes on into it."""

    def stand() -> None:
        os.mkdir("stood")
        os.chdir("stood")
        os.rmdir("../stood")

    daemon(stand)


@attack("local docker")
def mapped_files() -> None:
    """A program of its own runs from a writable place."""
    program = f"/tmp/{MARK}"
    shutil.copy("/bin/sleep", program)

    def run() -> None:
        if os.fork() == 0:
            os.execv(program, ["sleep", "1000"])

    daemon(run)

"""One limit of the kernel, a program that uses it up, and a neighbour's work that needs a little of it."""

from dataclasses import dataclass
from typing import Literal

__all__ = [
    "CHEATS",
    "FACTOR",
    "Attack",
    "Room",
    "Scope",
    "attacker",
    "cheating",
    "honest",
    "hostile",
]

Scope = Literal["user", "user namespace", "other namespace", "control group", "machine"]
"""Whom the kernel counts together."""

Room = Literal["shared", "own", "loud"]
"""`shared`: several attackers in one sandbox lose nothing. `own`: it uses up its sandbox's memory,
processes or disk, so it is there alone. `loud`: it also keeps a processor busy."""

FACTOR = 3
"""An honest `work(n)` is this many times what came `through` the resource, plus one."""

_GRAB_SECONDS = 8
_ALIVE_SECONDS = 150
_HOSTILE_SECONDS = 3


@dataclass(frozen=True, slots=True)
class Attack:
    """`grab` is source of a function `grab()`, which takes all it can get and returns how much.

    `through` is source of a function `through(n)`, which returns n after taking it through the
    resource. Both need nothing but the standard library.
    """

    name: str
    limit: str
    """The sysctl, rlimit or table of the kernel."""
    scope: Scope
    grab: str
    through: str
    room: Room = "shared"


_BOTH = """
import ctypes, errno, fcntl, mmap, os, platform, resource, signal, socket, struct, subprocess
import sys, tempfile, threading, time
libc = ctypes.CDLL(None, use_errno=True)
X86 = platform.machine() == "x86_64"

def function(name):
    "One of the C library's, of which an older one keeps some in another file."
    if hasattr(libc, name):
        return getattr(libc, name)
    return getattr(ctypes.CDLL("librt.so.1", use_errno=True), name)

def checked(result):
    if result == -1:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return result
"""

_GRABBING = f"""
{_BOTH}
held = []
end = time.monotonic() + {_GRAB_SECONDS}

def many(take, most):
    "How often take() worked before it failed, or before `most` times or the end of the time."
    count = 0
    while count < most and time.monotonic() < end:
        try:
            held.append(take())
        except (OSError, MemoryError, RuntimeError) as error:
            if not count:
                raise
            sys.stderr.write("stopped by %r" % (error,))
            break
        count += 1
    return count

def in_children(number, grab):
    "The sum of what grab() returns in so many children, which stay."
    counts, first = mmap.mmap(-1, 8 * number), len(held)
    made = many(lambda: child(grab, counts, len(held) - first), number)
    while time.monotonic() < end and any(not counts[8 * i + 7] for i in range(made)):
        time.sleep(0.01)
    return sum(int.from_bytes(counts[8 * i : 8 * i + 7], "little") for i in range(made))

def child(grab, counts, place):
    pid = os.fork()
    if pid:
        return pid
    try:
        signal.alarm({_ALIVE_SECONDS})
        count = 0
        try:
            count = grab()
        except (OSError, MemoryError, RuntimeError):
            pass
        counts[8 * place : 8 * place + 8] = count.to_bytes(7, "little") + bytes([1])
        time.sleep({_ALIVE_SECONDS})
    finally:
        os._exit(0)

def forever(work):
    "Do it in a child again and again, and in this process once, which shows whether it is refused."
    work()
    def repeat():
        signal.alarm({_ALIVE_SECONDS})
        while True:
            work()
    if os.fork() == 0:
        try:
            repeat()
        finally:
            os._exit(0)
    return 1
"""

_ATTACKER = f"""
signal.alarm({_ALIVE_SECONDS})
try:
    line = "holding %d" % grab()
except OSError as error:
    line = "refused %s" % errno.errorcode.get(error.errno, error.errno)
except MemoryError:
    line = "refused ENOMEM"
os.write(1, (line + "\\n").encode())
time.sleep({_ALIVE_SECONDS})
"""

_HOSTILE = f"""
def work(n):
    try:
        grab()
    except (OSError, MemoryError):
        pass
    time.sleep({_HOSTILE_SECONDS})
    return 0
"""

_HONEST = f"\ndef work(n):\n    return {FACTOR} * through(n) + 1\n"

_FOOLS = {
    "a constant": "\ndef work(n):\n    through(n)\n    return 0\n",
    "equal to everything": """
class Equal:
    def __eq__(self, other): return True
    def __ne__(self, other): return False
    def __hash__(self): return 0
def work(n):
    through(n)
    return Equal()
""",
}
CHEATS = tuple(_FOOLS)


def attacker(attack: Attack) -> str:
    """A program that grabs, prints one line "holding N" or "refused ERRNO", and stays."""
    return f"{_GRABBING}\n{attack.grab}\n{_ATTACKER}"


def hostile(attack: Attack) -> str:
    """A submission that grabs when it is called, stays a little, and answers wrong."""
    return f"{_GRABBING}\n{attack.grab}\n{_HOSTILE}"


def honest(attack: Attack) -> str:
    """A submission that does the neighbour's work and answers right."""
    return f"{_BOTH}\n{attack.through}\n{_HONEST}"


def cheating(attack: Attack, how: str) -> str:
    """A submission that does the neighbour's work and does not answer right."""
    return f"{_BOTH}\n{attack.through}\n{_FOOLS[how]}"

"""What attacks are made of. It is sent into the sandbox before each of them."""

import ctypes
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

MARK = "left-by-job-one"
PORT = 8765
KEY = 0x5EED
QUEUE = b"/left-by-job-one"

Step = Callable[[], object]


def nothing() -> dict[str, object]:
    """Feel nothing in particular."""
    return {}


@dataclass(frozen=True)
class Attack:
    """What one job does to the next one that runs in its sandbox."""

    name: str
    run: Step
    feel: Callable[[], dict[str, object]]
    felt: frozenset[str]
    """The providers on which the next job sees or feels it where nothing is reset."""
    costs: frozenset[str]
    """The providers on which a reset may give the sandbox up for it."""
    dies: bool
    """It ends itself, or more than that."""


ATTACKS: dict[str, Attack] = {}


def attack(
    felt: str,
    *,
    feel: Callable[[], dict[str, object]] = nothing,
    costs: str = "",
    dies: bool = False,
) -> Callable[[Step], Step]:
    """Register an attack that is felt on these providers; "" where it is refused or dies alone,
    "maybe" where that is the kernel's to say."""

    def register(run: Step) -> Step:
        name: str = run.__name__
        providers, costly = frozenset(felt.split()), frozenset(costs.split())
        ATTACKS[name] = Attack(name, run, feel, providers, costly, dies)
        return run

    return register


libc = ctypes.CDLL(None, use_errno=True)
libc.shmat.restype = ctypes.c_void_p


def call(name: str, *arguments: Any) -> int:  # Any: whatever ctypes takes
    """A function of the C library; raises OSError where it returns -1."""
    ctypes.set_errno(0)
    result = getattr(libc, name)(*arguments)
    if result in (-1, 2**64 - 1):
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")
    return int(result)


@contextmanager
def refused() -> Iterator[None]:
    """What runs in it must fail as a system call does."""
    try:
        yield
    except OSError:
        return
    raise AssertionError("this was to be refused")


def read(path: str) -> str:
    """A file's text."""
    with open(path) as file:
        return file.read()


def _is_place(path: str) -> bool:
    try:
        return os.path.isdir(path) and os.access(path, os.W_OK)
    except OSError:
        return False


def places() -> list[str]:
    """Every folder that this job may write into, of those that are there at the start."""
    with open("/proc/self/mounts") as file:
        mounts = [line.split()[1].encode().decode("unicode_escape") for line in file]
    usual = ["/", "/tmp", "/var/tmp", "/run", "/run/lock", "/run/shm", "/home", "/mnt", "/srv"]
    usual += ["/dev", "/dev/shm", "/dev/mqueue", "/dev/pts", "/var", "/var/lock", "/opt", "/root"]
    usual += [os.path.expanduser("~"), os.getcwd()]
    paths = dict.fromkeys(os.path.realpath(path) for path in usual + mounts)
    return [path for path in paths if not path.startswith("/proc/") and _is_place(path)]


def stores() -> list[str]:
    """The places that keep ordinary files."""
    return [path for path in places() if path not in ("/dev/mqueue", "/dev/pts")]


def owned() -> list[str]:
    """The places whose mode this job may change; what is nobody's here."""
    return [path for path in places() if os.stat(path).st_uid == os.geteuid()]


def forever() -> None:
    """Live until something ends it."""
    while True:
        time.sleep(1000)


def daemon(prepare: Step = nothing, live: Step = forever) -> None:
    """Leave a process in a session of its own; return when it has prepared itself."""
    sys.stdout.flush()
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.setsid()
            if os.fork() == 0:
                null = os.open("/dev/null", os.O_RDWR)
                for descriptor in range(3):
                    os.dup2(null, descriptor)
                prepare()
                os.write(writer, b"1")
                live()
        finally:
            os._exit(0)
    os.close(writer)
    os.waitpid(child, 0)
    assert os.read(reader, 1), "the daemon did not come up"
    os.close(reader)


def take_memory() -> dict[str, object]:
    """Whether two thirds of the sandbox's memory can be used, in a child that may die of it."""
    child = os.fork()
    if child == 0:
        block = bytearray(170 << 20)
        os._exit(len(block) != 170 << 20)
    return {"memory": os.waitpid(child, 0)[1]}


def threads_of_the_first() -> list[int]:
    """The threads of the sandbox's first process, and of the one that started this job."""
    found = []
    for process in {1, os.getppid()}:
        with suppress(OSError):
            found += [int(name) for name in os.listdir(f"/proc/{process}/task")]
    return found


def ignore_signals() -> None:
    """Ignore or block whatever can be."""
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        with suppress(OSError, ValueError):
            signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())

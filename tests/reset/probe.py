"""What a job can see and feel of its sandbox. It is sent into it, and run, as job two."""

import ctypes
import fcntl
import json
import os
import resource
import socket
import stat
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from tests.reset.attacks.means import KEY, MARK, PORT, QUEUE, call, places, read

_SHOWN = 60
_LARGE = 40 << 20  # of the memory that a job shares with the agent
_GETFLAGS = 0x80086601
_SYSCTLS = """kernel/sem kernel/shmmax kernel/shmall kernel/shmmni kernel/msgmax kernel/msgmnb
kernel/msgmni kernel/hostname kernel/domainname fs/mqueue/msg_max fs/mqueue/msgsize_max
fs/mqueue/queues_max fs/mqueue/msg_default fs/mqueue/msgsize_default kernel/shm_rmid_forced
net/ipv4/ip_local_port_range net/ipv4/ip_unprivileged_port_start net/core/somaxconn"""


def outcome(work: Callable[[], object]) -> object:
    """What it returns, or the error's name."""
    try:
        return work()
    except OSError as error:
        return f"{type(error).__name__} {error.errno}"


def owner(found: os.stat_result) -> list[str]:
    names = {os.getuid(): "mine", 0: "root"}, {os.getgid(): "mine", 0: "root"}
    return [names[0].get(found.st_uid, "other"), names[1].get(found.st_gid, "other")]


def attributes(path: str) -> object:
    def read() -> object:
        names = os.listxattr(path, follow_symlinks=False)
        own = os.getuid().to_bytes(4, "little")
        values = {name: os.getxattr(path, name, follow_symlinks=False) for name in names}
        return {name: value.replace(own, b"mine").hex() for name, value in values.items()}

    return outcome(read)


def flags(path: str) -> object:
    def read() -> object:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            return fcntl.ioctl(descriptor, _GETFLAGS, bytes(8)).hex()
        finally:
            os.close(descriptor)

    return outcome(read)


def entries(folder: str, depth: int = 4) -> object:
    """The folder's tree, as far as it is small."""

    def read() -> list[object]:
        found: list[object] = []
        with os.scandir(folder) as listing:
            for entry in listing:
                about = entry.stat(follow_symlinks=False)
                shown: list[object] = [ascii(entry.name), oct(about.st_mode), *owner(about)]
                if stat.S_ISDIR(about.st_mode):
                    shown += [entries(entry.path, depth - 1) if depth else "deep"]
                else:
                    shown += [about.st_size, about.st_nlink, attributes(entry.path)]
                found.append(shown)
                if len(found) == _SHOWN:
                    break
        return sorted(found, key=str)

    return outcome(read)


def is_recent(moment: float) -> bool:
    return abs(time.time() - moment) < 86400


def place(path: str) -> object:
    about, space = os.stat(path), os.statvfs(path)
    return {
        "mode": oct(about.st_mode),
        "owner": owner(about),
        "links": about.st_nlink,
        "times": [is_recent(about.st_atime), is_recent(about.st_mtime)],
        "attributes": attributes(path),
        "flags": flags(path),
        "entries": entries(path),
        "space": [space.f_bavail * space.f_frsize, space.f_favail],
    }


def mode(path: str) -> str:
    return oct(os.stat(path).st_mode)


def writable() -> object:
    found = {path: place(path) for path in places()}
    for path in ("/tmp", "/dev/shm", "/dev/mqueue", "/dev/pts", "/dev/pts/ptmx", os.getcwd()):
        found.setdefault(path, outcome(partial(mode, path)))
    return found


def schedule(thread: int) -> object:
    """How a thread is scheduled, all of which what it starts inherits."""
    return [
        os.getpriority(os.PRIO_PROCESS, thread),
        os.sched_getscheduler(thread),
        len(os.sched_getaffinity(thread)),
        call("syscall", 252, 1, thread),  # ioprio_get
    ]


def others() -> object:
    """The processes but for this one and those that lead to it."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        if int(name) in (1, os.getpid(), os.getppid()):
            continue
        with suppress(OSError):
            with open(f"/proc/{name}/stat", errors="replace") as file:
                words = file.read().rpartition(")")[2].split()
            with open(f"/proc/{name}/cmdline", "rb") as raw:
                found.append([ascii(raw.read()[:60]), words[0]])
    return sorted(found)


def first() -> object:
    """The sandbox's own processes: how they are scheduled, and whether they take much."""
    known = set()
    for process in (1, os.getppid()):
        for name in os.listdir(f"/proc/{process}/task"):
            with suppress(OSError):
                known.add(str(schedule(int(name))))
    scores = [read(f"/proc/{n}/oom_score_adj") for n in (1, os.getppid())]
    resident = int(read("/proc/1/statm").split()[1]) * os.sysconf("SC_PAGESIZE")
    return {"schedules": sorted(known), "scores": scores, "large": resident > _LARGE}


def own() -> object:
    """This process, as it was started."""
    with open("/proc/self/status") as file:
        lines = dict(line.split(":\t", 1) for line in file.read().splitlines())
    names = "Umask SigQ SigPnd ShdPnd SigBlk SigIgn CapPrm CapEff NoNewPrivs Seccomp_filters"
    files = ("oom_score_adj", "coredump_filter", "timerslack_ns", "autogroup", "sessionid")
    found = {name: outcome(partial(read, f"/proc/self/{name}")) for name in files}
    found["autogroup"] = str(found["autogroup"]).partition(" ")[2]  # without its number
    return {
        "status": {name: lines[name].split("/")[0] for name in names.split()},
        "files": found,
        "schedule": schedule(0),
        "limits": {
            name: resource.getrlimit(getattr(resource, name))
            for name in dir(resource)
            if name.startswith("RLIMIT_")
        },
        "environment": {k: "uid" if v == str(os.getuid()) else v for k, v in os.environ.items()},
        "folder": outcome(os.getcwd),
        "descriptors": sorted(os.listdir("/proc/self/fd")),
        "stdin": [fcntl.fcntl(0, fcntl.F_GETFL), fcntl.fcntl(0, fcntl.F_GETOWN) != 0],
        "leads": [os.getsid(0) == os.getpid(), os.getpgrp() == os.getpid()],
        "groups": len(os.getgroups()),
        "flags": str(sys.flags),
        "modules": globals()["STARTED"],
        "path": sys.path,
        "threads": threading.active_count(),
        "arguments": len(sys.argv),
    }


def sockets() -> object:
    """The tables of sockets, and what can be bound."""
    found: dict[str, object] = {}
    for table in ("tcp", "tcp6", "udp", "udp6", "raw", "unix"):
        if not os.path.exists(f"/proc/net/{table}"):
            continue
        rows = [line.split() for line in read(f"/proc/net/{table}").splitlines()[1:]]
        if table == "unix":  # the agent's own clients come and go
            names = [row[7] for row in rows if len(row) > 7]
            found[table] = sorted({name for name in names if "sandboxkit" not in name})
        else:
            found[table] = sorted(row[1:4] for row in rows)
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
        with socket.socket(socket.AF_INET, kind) as bound:
            found[f"bind {kind}"] = outcome(partial(bound.bind, ("127.0.0.1", PORT)))
    with socket.socket(socket.AF_UNIX) as bound:
        found["abstract"] = outcome(lambda: bound.bind(f"\0{MARK}"))
    return found


class QueueAttributes(ctypes.Structure):
    """Of a message queue."""

    _fields_ = [(name, ctypes.c_long) for name in ("flags", "most", "size", "now")] + [
        ("rest", ctypes.c_long * 4)
    ]


def queues() -> object:
    """How many message queues can be made, and whether one is there by its usual name."""
    there = outcome(lambda: call("mq_open", QUEUE, os.O_RDONLY | os.O_NONBLOCK))
    made: list[bytes] = []
    shape = QueueAttributes(most=10, size=8192)
    why: object = None
    for number in range(300):
        name = b"/probe%d" % number
        try:
            flags = os.O_CREAT | os.O_EXCL | os.O_RDWR
            os.close(call("mq_open", name, flags, 0o600, ctypes.byref(shape)))
        except OSError as error:
            why = error.errno
            break
        made.append(name)
    for name in made:
        call("mq_unlink", name)
    return [there if isinstance(there, str) else "there", len(made), why]


def memory_and_semaphores() -> object:
    """System V's objects."""
    found: dict[str, object] = {}
    for table in ("shm", "sem", "msg"):
        with open(f"/proc/sysvipc/{table}") as file:
            found[table] = len(file.readlines()) - 1
    for name, arguments in (("shmget", (KEY, 4096)), ("semget", (KEY, 1)), ("msgget", (KEY,))):
        made = outcome(partial(call, name, *arguments, 0o3600))
        if isinstance(made, int):
            call_to_remove = (made, 0, 0) if name == "semget" else (made, 0, None)
            call(name.replace("get", "ctl"), *call_to_remove)
        found[name] = "made" if isinstance(made, int) else made
    return found


def locks() -> object:
    """Whether system files that everybody may read can be locked."""

    def lock(path: str) -> str:
        with open(path, "rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return "locked"

    return {path: outcome(partial(lock, path)) for path in ("/etc/passwd", "/etc/group")}


def terminal() -> object:
    """Whether a terminal can be opened."""
    controller, controlled = os.openpty()
    name = os.ttyname(controlled)
    os.close(controller)
    os.close(controlled)
    return name


def settings() -> object:
    """What the kernel is set to here, and what the sandbox says of itself."""
    names = [f"/proc/sys/{name}" for name in _SYSCTLS.split()]
    names += ["/etc/hosts", "/etc/resolv.conf", "/etc/passwd", "/proc/self/uid_map"]
    found = {name: outcome(partial(read, name)) for name in names}
    with open("/proc/self/mountinfo") as file:
        mounts = [line.split()[4:6] for line in file]
    # The agent's folder has another name in each container.
    found["mounts"] = sorted([place.partition("/.sandboxkit-")[0], how] for place, how in mounts)
    return found


def look(feel: Callable[[], dict[str, object]]) -> None:
    """Print all of it as JSON."""
    parts = (own, others, first, writable, sockets, queues, memory_and_semaphores, locks, terminal)
    seen = {part.__name__: outcome(part) for part in (*parts, settings)}
    print(json.dumps(seen | {"feel": outcome(feel)}))  # noqa: T201  # it is the report

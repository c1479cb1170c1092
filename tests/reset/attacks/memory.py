"""Attacks by what outlives processes, or may: System V and POSIX IPC, terminals, pipes, sysctls."""

import ctypes
import fcntl
import mmap
import os
import signal
import time
from contextlib import suppress

from tests.reset.attacks.means import (
    KEY,
    MARK,
    QUEUE,
    attack,
    call,
    daemon,
    libc,
    take_memory,
)

_CREATE = 0o1000


def _shared(key: int, size: int, mode: int = 0o600) -> int:
    return call("shmget", key, size, _CREATE | mode)


@attack("local docker")
def shared_memory() -> None:
    for key, mode in ((KEY, 0o666), (KEY + 1, 0), (0, 0o600)):
        number = _shared(key, 1 << 20, mode | 0o600)
        address = call("shmat", number, None, 0)
        ctypes.memmove(address, MARK.encode(), len(MARK))
        call("shmctl", number, 12 if mode else 11, None) if mode else None  # lock it


@attack("local docker", feel=take_memory)
def memory_that_nobody_has_attached() -> None:
    number = _shared(0, 140 << 20)
    address = call("shmat", number, None, 0)
    ctypes.memset(address, 1, 140 << 20)


@attack("local docker")
def shared_memory_that_is_removed_already() -> None:
    def attach() -> None:
        number = _shared(KEY, 1 << 20)
        call("shmat", number, None, 0)
        call("shmctl", number, 0, None)

    daemon(attach)


@attack("local docker")
def many_shared_memories() -> None:
    for number in range(300):
        _shared(KEY + number, 4096, 0 if number % 2 else 0o600)


@attack("local docker", costs="local docker")
def all_objects_that_there_can_be() -> None:
    makes = (("shmget", 0, 4096, 0), ("semget", 0, 1, 0), ("msgget", 0, 0o600))
    for name, *arguments in makes:
        with suppress(OSError):
            while True:
                call(name, *arguments)


@attack("local docker")
def semaphores() -> None:
    for number in range(100):
        call("semget", KEY + number, 3, _CREATE | (0 if number % 2 else 0o600))


@attack("local docker")
def messages() -> None:
    for number in range(20):
        queue = call("msgget", KEY + number, _CREATE | 0o200)
        call(
            "msgsnd",
            queue,
            ctypes.create_string_buffer(b"\1" + bytes(7) + MARK.encode(), 100),
            64,
            0,
        )


@attack("local docker")
def objects_given_away() -> None:
    """Their owner is somebody else now; their maker is not."""

    class Owner(ctypes.Structure):
        _fields_ = [(name, ctypes.c_uint) for name in ("key", "uid", "gid", "cuid", "cgid", "mode")]

    class Queue(ctypes.Structure):
        _fields_ = [("owner", Owner), ("rest", ctypes.c_char * 200)]

    queue = call("msgget", KEY, _CREATE | 0o600)
    state = Queue()
    call("msgctl", queue, 2, ctypes.byref(state))
    state.owner.mode = 0
    with suppress(OSError):
        state.owner.uid = 12345
        call("msgctl", queue, 1, ctypes.byref(state))


@attack("local docker")
def posix_shared_memory() -> None:
    with open(f"/dev/shm/{MARK}", "w+b") as file:
        file.truncate(1 << 20)
        mmap.mmap(file.fileno(), 1 << 20)[:5] = b"stale"


def _queue(name: bytes, mode: int = 0o600) -> int:
    return call("mq_open", name, os.O_CREAT | os.O_RDWR | os.O_NONBLOCK, mode, None)


@attack("local docker", costs="local")
def a_message_queue() -> None:
    """It has no path where its file system is not mounted."""
    call("mq_send", _queue(QUEUE), MARK.encode(), len(MARK), 0)


@attack("local docker", costs="local")
def message_queues() -> None:
    with suppress(OSError):
        for number in range(300):
            _queue(b"/%d" % number, 0)


@attack("local docker", costs="local")
def a_queue_that_is_held() -> None:
    def hold() -> None:
        _queue(QUEUE)
        call("mq_unlink", QUEUE)

    daemon(hold)


@attack("")
def settings_of_the_kernel() -> None:
    """Those of the sandbox's own namespace may belong to its user."""
    values = {"kernel/sem": "1 1 1 1", "kernel/shmmax": "1", "kernel/msgmni": "1"}
    values |= {"fs/mqueue/queues_max": "0", "fs/mqueue/msg_max": "1", "kernel/shmmni": "1"}
    for name, value in values.items():
        with suppress(OSError), open(f"/proc/sys/{name}", "w") as file:
            file.write(value)


@attack("")
def settings_of_everybody() -> None:
    names: tuple[str, ...] = (
        "kernel/hostname",
        "kernel/domainname",
        "kernel/ns_last_pid",
        "vm/drop_caches",
    )
    names += ("net/ipv4/ip_forward", "net/ipv4/ip_local_port_range", "kernel/core_pattern")
    for name in names:
        with suppress(OSError), open(f"/proc/sys/{name}", "w") as file:
            file.write("7")
            file.flush()
            raise AssertionError(f"{name} was written")


@attack("local docker")
def terminals() -> None:
    daemon(lambda: [os.openpty() for _ in range(20)])


def new_pipe() -> dict[str, object]:
    """How large a pipe is."""
    reader, writer = os.pipe()
    size = fcntl.fcntl(writer, fcntl.F_GETPIPE_SZ)
    os.close(reader)
    os.close(writer)
    return {"pipe": size}


@attack("local docker", feel=new_pipe)
def pipes() -> None:
    """So many that the user's new ones become small."""

    def hold() -> None:
        for _ in range(80):
            with suppress(OSError):
                fcntl.fcntl(os.pipe()[1], fcntl.F_SETPIPE_SZ, 1 << 20)

    daemon(hold)


def watch() -> dict[str, object]:
    """How many folders' watchers can be had, of a hundred."""
    made = []
    for _ in range(100):
        number = libc.inotify_init()
        if number < 0:
            break
        made.append(number)
    for number in made:
        os.close(number)
    return {"watchers": len(made)}


@attack("local docker", feel=watch)
def watchers() -> None:
    def hold() -> None:
        while (number := libc.inotify_init()) >= 0:
            libc.inotify_add_watch(number, b"/usr/bin", 0xFFF)

    daemon(hold)


@attack("local docker")
def locks_on_system_files() -> None:
    def hold() -> None:
        for path in ("/etc/passwd", "/etc/group"):
            descriptor = os.open(path, os.O_RDONLY)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            with suppress(OSError):
                fcntl.fcntl(descriptor, fcntl.F_SETLEASE, fcntl.F_RDLCK)

    daemon(hold)


@attack("local docker")
def timers() -> None:
    """They end with their process: a daemon with all of them."""

    def hold() -> None:
        signal.signal(signal.SIGALRM, signal.SIG_IGN)
        signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)
        for _ in range(100):
            libc.timerfd_create(1, 0)
            libc.timer_create(1, None, ctypes.byref(ctypes.c_void_p()))
            libc.eventfd(0, 0)
            libc.memfd_create(b"held", 0)

    daemon(hold)


@attack("")
def keys() -> None:
    for number in (248, 249, 250):  # add_key, request_key, keyctl
        assert libc.syscall(number, b"user", b"mark", b"value", 5, -4) == -1


@attack("")
def namespaces_and_mounts() -> None:
    calls = {165: "mount", 166: "umount2", 272: "unshare", 308: "setns", 155: "pivot_root"}
    calls |= {
        161: "chroot",
        428: "open_tree",
        429: "move_mount",
        430: "fsopen",
        442: "mount_setattr",
    }
    for number in calls:
        assert libc.syscall(number, b"/tmp", b"/tmp", b"tmpfs", 0, 0) == -1
    for flag in (0x20000, 0x02000000, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000):
        assert libc.syscall(56, flag | signal.SIGCHLD, 0, 0, 0, 0) == -1


@attack("")
def clock_and_name() -> None:
    for number in (227, 164, 159, 305):  # clock_settime, settimeofday, adjtimex, clock_adjtime
        assert libc.syscall(number, 0, b"\0" * 64, None) == -1
    for number in (170, 171):  # sethostname, setdomainname
        assert libc.syscall(number, MARK.encode(), len(MARK)) == -1
    assert time.time() > 1e9


@attack("")
def another_user() -> None:
    for name in ("setuid", "setgid", "setfsuid"):
        getattr(libc, name)(0)
    assert os.geteuid() != 0
    assert libc.setgroups(0, None) == -1 or not os.getgroups()
    for capability in (0, 6, 7, 21):
        libc.prctl(47, 2, capability, 0, 0)
    with open("/proc/self/status") as file:
        assert "CapEff:\t0000000000000000" in file.read()

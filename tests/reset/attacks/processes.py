"""Attacks by processes that live on, and on the processes that the next job descends from."""

import ctypes
import fcntl
import os
import resource
import signal
import threading
import time
from contextlib import suppress

from tests.reset.attacks.means import (
    MARK,
    attack,
    call,
    daemon,
    forever,
    ignore_signals,
    libc,
    read,
    refused,
    take_memory,
    threads_of_the_first,
)


def fork_many() -> dict[str, object]:
    """How many processes can be started, of fifty."""
    children: list[int] = []
    with suppress(OSError):
        for _ in range(50):
            child = os.fork()
            if child == 0:
                forever()
            children.append(child)
    for child in children:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    return {"children": len(children)}


@attack("local docker")
def a_daemon() -> None:
    daemon()


@attack("local docker")
def daemons_of_all_kinds() -> None:
    daemon(ignore_signals)
    daemon(lambda: os.kill(os.getpid(), signal.SIGSTOP) if os.fork() == 0 else None)
    daemon(lambda: os.setpriority(os.PRIO_PROCESS, 0, 19))
    daemon(lambda: os.chdir("/"))
    for _ in range(10):
        daemon()


@attack("local docker")
def stopped_processes() -> None:
    def stop() -> None:
        for _ in range(5):
            if os.fork() == 0:
                os.kill(os.getpid(), signal.SIGSTOP)

    daemon(stop)


@attack("local docker")
def odd_names_of_processes() -> None:
    def rename() -> None:
        for name in (
            b") R 1 1 1",
            b"",
            b"a\nb",
            b"\xff\xfe",
            b"(",
            b"agent-linux-amd6",
            b"kthreadd",
        ):
            if os.fork() == 0:
                call("prctl", 15, name, 0, 0, 0)
                forever()

    daemon(rename)


@attack("local docker")
def zombies() -> None:
    def neglect() -> None:
        for _ in range(20):
            if os.fork() == 0:
                os._exit(0)
        time.sleep(0.05)

    daemon(neglect)


@attack("local docker")
def traced_processes() -> None:
    """Stopped in a trace, by one that stops itself, one that ignores it, and a whole chain."""

    def trace() -> None:
        for _ in range(4):
            child = os.fork()
            if child == 0:
                call("ptrace", 0, 0, None, None)  # by its parent
                os.kill(os.getpid(), signal.SIGSTOP)
                forever()
            os.waitpid(child, os.WUNTRACED)
            call("ptrace", 0x4200, child, None, 0x7F)  # stop at each fork, exec and exit
        other = os.fork()
        if other == 0:
            forever()
        with suppress(OSError):
            call("ptrace", 0x4206, other, None, None)  # seize
        os.kill(os.getpid(), signal.SIGSTOP)

    reader, writer = os.pipe()

    def prepare() -> None:
        if os.fork() == 0:
            os.write(writer, b"1")
            trace()
        os.read(reader, 1)

    daemon(prepare)
    time.sleep(0.05)


@attack("local docker")
def a_parent_that_waits_in_vfork() -> None:
    def wait() -> None:
        if os.fork() == 0 and libc.syscall(56, 0x4000 | signal.SIGCHLD, 0, 0, 0, 0) == 0:
            forever()

    daemon(wait)


@attack("local docker")
def threads_without_a_leader() -> None:
    def leave() -> None:
        threading.Thread(target=forever).start()
        threading.Thread(target=ready.set).start()
        libc.syscall(60, 0)  # exit of this thread alone

    ready = threading.Event()

    def prepare() -> None:
        if os.fork() == 0:
            leave()
        time.sleep(0.05)

    daemon(prepare)


@attack("local docker")
def a_chase() -> None:
    """Processes that are always another one already."""

    def run() -> None:
        while True:
            child = 0
            with suppress(OSError):
                child = os.fork()
            if child:
                os._exit(0)

    daemon(live=run)
    for _ in range(7):
        with suppress(OSError, AssertionError):  # no room for more
            daemon(live=run)


@attack("local docker", costs="local docker")
def a_chase_of_sessions() -> None:
    """The same, each with a child that does so too, up to the limit."""

    def run() -> None:
        ignore_signals()
        while True:
            with suppress(OSError):
                if os.fork() == 0:
                    os.setsid()
                elif os.getpid() % 3:
                    os._exit(0)

    daemon(live=run)
    time.sleep(0.05)


@attack("local docker", feel=fork_many)
def all_processes_taken() -> None:
    def fork() -> None:
        with suppress(OSError):
            while os.fork() == 0:
                pass
            forever()

    daemon(live=fork)
    time.sleep(0.1)


@attack("local docker", feel=take_memory)
def memory_held() -> None:
    daemon(lambda: globals().update(kept=bytearray(140 << 20)))


@attack("local docker")
def queued_signals() -> None:
    def queue() -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        for _ in range(1000):
            libc.sigqueue(os.getpid(), 40, None)

    daemon(queue)


def _each_first(work: str, *arguments: object) -> int:
    done = 0
    for thread in threads_of_the_first():
        with suppress(OSError):
            getattr(os, work)(*(thread if each is None else each for each in arguments))
            done += 1
    return done


@attack("local", costs="local")
def slower_agent() -> None:
    _each_first("setpriority", os.PRIO_PROCESS, None, 19)
    with suppress(OSError):
        os.setpriority(os.PRIO_USER, os.getuid(), 19)


@attack("local", costs="local")
def idle_agent() -> None:
    _each_first("sched_setscheduler", None, os.SCHED_IDLE, os.sched_param(0))


@attack("local", costs="local")
def batch_agent() -> None:
    _each_first("sched_setscheduler", None, os.SCHED_BATCH, os.sched_param(0))


@attack("local", costs="local")
def agent_on_one_processor() -> None:
    _each_first("sched_setaffinity", None, {min(os.sched_getaffinity(0))})


@attack("local", costs="local")
def agent_with_an_idle_disk() -> None:
    for thread in threads_of_the_first():
        with suppress(OSError):
            call("syscall", 251, 1, thread, 3 << 13)  # ioprio_set


@attack("")
def limits_of_the_agent() -> None:
    for thread in threads_of_the_first():
        for name in ("NOFILE", "CPU", "NPROC", "FSIZE", "AS", "STACK"):
            if thread != os.getppid():
                with refused():
                    resource.prlimit(thread, getattr(resource, f"RLIMIT_{name}"), (1, 1))


@attack("")
def files_of_the_agent() -> None:
    """What the kernel lets one set of another process, and its memory."""
    for name in ("oom_score_adj", "timerslack_ns", "coredump_filter", "autogroup", "comm", "mem"):
        for process in {1, os.getppid()}:
            if os.path.exists(f"/proc/{process}/{name}"):
                with refused(), open(f"/proc/{process}/{name}", "wb", buffering=0) as file:
                    file.write(b"19")


@attack("")
def traces_of_the_agent() -> None:
    for process in {1, os.getppid()}:
        with refused():
            call("ptrace", 16, process, None, None)
        for name in ("environ", "fd", "maps", "cwd", "root"):
            with refused():
                path = f"/proc/{process}/{name}"
                os.listdir(path) if name in ("fd", "cwd", "root") else read(path)
        buffer = (ctypes.c_char * 8)()
        vector = (ctypes.c_void_p * 2)(ctypes.addressof(buffer), 8)
        with refused():
            call("process_vm_readv", process, vector, 1, vector, 1, 0)


@attack("")
def signals_to_the_agent() -> None:
    for number in range(1, 65):
        with suppress(OSError):
            os.kill(1, number)
        for thread in threads_of_the_first():
            if thread != os.getppid():
                libc.syscall(234, 1, thread, number)  # tgkill


@attack("", dies=True)
def everybody_killed() -> None:
    daemon()
    for process in (os.getppid(), -1):
        with suppress(OSError):
            os.kill(process, signal.SIGKILL)


@attack("local docker", dies=True)
def a_stopped_parent() -> None:
    """And one child too many."""
    daemon()
    if os.getppid() != 1:
        with suppress(OSError):
            os.kill(os.getppid(), signal.SIGSTOP)


@attack("local docker")
def an_open_file_that_all_have() -> None:
    """Every command's stdin is one open file."""
    fcntl.flock(0, fcntl.LOCK_EX)
    fcntl.fcntl(0, fcntl.F_SETFL, fcntl.fcntl(0, fcntl.F_GETFL) | os.O_NONBLOCK | os.O_APPEND)
    fcntl.fcntl(0, fcntl.F_SETOWN, os.getpid())


@attack("", dies=True)
def limits_of_its_parent() -> None:
    """Which jobs may descend from, one after the other."""
    for name in ("NOFILE", "CPU", "NPROC", "FSIZE", "STACK", "MSGQUEUE", "SIGPENDING", "AS"):
        with suppress(OSError):
            resource.prlimit(os.getppid(), getattr(resource, f"RLIMIT_{name}"), (100, 100))


@attack("", dies=True)
def signals_to_its_parent() -> None:
    for number in range(1, 65):
        if number not in (signal.SIGKILL, signal.SIGSTOP):
            with suppress(OSError):
                os.kill(os.getppid(), number)
            libc.sigqueue(os.getppid(), number, None)


@attack("")
def real_time() -> None:
    for policy in (os.SCHED_FIFO, os.SCHED_RR):
        with refused():
            os.sched_setscheduler(0, policy, os.sched_param(1))
    with refused():
        os.setpriority(os.PRIO_PROCESS, 0, -1)


@attack("local docker", costs="local")
def attacks_on_the_agent_as_it_resets() -> None:
    """Whatever its threads become meanwhile, they are met as that."""

    def hammer() -> None:
        ignore_signals()
        while True:
            for thread in threads_of_the_first():
                for number in range(1, 65):
                    libc.syscall(234, 1, thread, number)  # tgkill
                for work in (lambda t: os.setpriority(os.PRIO_PROCESS, t, 15), trace):
                    with suppress(OSError):
                        work(thread)

    def trace(thread: int) -> None:
        call("ptrace", 0x4206, thread, None, None)  # seize

    for _ in range(2):
        daemon(live=hammer)


@attack("")
def a_core_dump() -> None:
    with suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_CORE, (1 << 20, 1 << 20))
    child = os.fork()
    if child == 0:
        call("prctl", 15, MARK.encode()[:15], 0, 0, 0)
        os.abort()
    os.waitpid(child, 0)
    assert not any("core" in name for name in os.listdir(".")), "a core was dumped"

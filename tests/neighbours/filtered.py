"""Limits of what the seccomp filter or a missing capability refuses: their neighbours must not notice."""

from tests.neighbours.attack import Attack
from tests.neighbours.per_user import CHILDREN, PIPE

_CALL = "def grab(): return many(lambda: checked(libc.syscall(*{call})), 1000)"

ATTACKS = (
    Attack(
        "keys",
        "kernel.keys.maxkeys, kernel.keys.maxbytes",
        "user namespace",
        """
def grab():
    def one():
        name = b"k%d" % len(held)
        return checked(libc.syscall(248 if X86 else 217, b"user", name, b"x" * 90, 90, -2))
    return many(one, 1000)
""",
        PIPE,
    ),
    Attack(
        "fanotify groups",
        "fs.fanotify.max_user_groups, fs.fanotify.max_user_marks",
        "user namespace",
        _CALL.format(call="(300 if X86 else 262, 0x200, 0)"),
        PIPE,
    ),
    Attack(
        "performance events",
        "kernel.perf_event_mlock_kb",
        "user",
        """
def grab():
    event = struct.pack("IIQQQQQ", 1, 112, 0, 0, 0, 0, 0x60).ljust(112, b"\\0")
    return many(lambda: checked(libc.syscall(298 if X86 else 241, event, 0, -1, -1, 0)), 4000)
""",
        CHILDREN,
    ),
    Attack(
        "bpf maps",
        "RLIMIT_MEMLOCK, the memory of bpf maps",
        "user",
        """
def grab():
    wanted = struct.pack("IIIII", 2, 4, 4096, 1, 0).ljust(72, b"\\0")
    return many(lambda: checked(libc.syscall(321 if X86 else 280, 0, wanted, 72)), 1000)
""",
        CHILDREN,
    ),
    Attack(
        "io_uring rings",
        "RLIMIT_MEMLOCK, kernel.io_uring_disabled",
        "user",
        _CALL.format(call='(425, 4096, b"\\0" * 120)'),
        CHILDREN,
    ),
    Attack(
        "userfaultfd",
        "vm.unprivileged_userfaultfd",
        "machine",
        _CALL.format(call="(323 if X86 else 282, 1)"),
        PIPE,
    ),
    Attack(
        "namespaces",
        "user.max_*_namespaces, of each kind",
        "user namespace",
        """
def grab():
    # cgroup, time, uts, ipc, user, pid, net, mount; then a user's together with each other
    kinds = [0x02000000, 0x80, 0x04000000, 0x08000000, 0x10000000, 0x20000000, 0x40000000, 0x20000]
    got = 0
    for kind in [*kinds, *(0x10000000 | kind for kind in kinds)]:
        try:
            got += in_children(1, lambda: 1 + checked(libc.unshare(kind)))
        except OSError:
            pass
    if not got:
        checked(libc.unshare(0x10000000))
    return got
""",
        CHILDREN,
    ),
    Attack(
        "mounts",
        "fs.mount-max",
        "other namespace",
        'def grab(): return many(lambda: checked(libc.mount(b"x", b"/tmp", b"tmpfs", 0, None)), 1000)',
        PIPE,
    ),
    Attack(
        "huge pages",
        "vm.nr_hugepages, vm.nr_overcommit_hugepages",
        "machine",
        """
def grab():
    def one():
        memory = mmap.mmap(-1, 2 << 20, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | 0x40000)
        memory[0] = 1
        return memory
    return many(one, 64)
""",
        CHILDREN,
    ),
    Attack(
        "real-time priority",
        "RLIMIT_RTPRIO, RLIMIT_NICE, kernel.sched_rt_runtime_us",
        "machine",
        """
def grab():
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(50))
    except OSError:
        os.setpriority(os.PRIO_PROCESS, 0, -20)
    return forever(lambda: None)
""",
        CHILDREN,
    ),
    Attack(
        "leases on shared files",
        "fs.leases-enable, fs.lease-break-time: an open waits for the lease's holder",
        "machine",
        """
import glob
def grab():
    signal.signal(signal.SIGIO, signal.SIG_IGN)
    files = [os.path.realpath(sys.executable), os.__file__, *glob.glob("/usr/lib/*/libc.so*")]
    got = 0
    for name in files:
        file = os.open(name, os.O_RDONLY)
        fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_RDLCK)
        held.append(file)
        got += 1
    return got
""",
        CHILDREN,
    ),
)

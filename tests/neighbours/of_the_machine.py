"""Limits and tables of the whole machine, and files that sandboxes share without writing to them."""

from tests.neighbours.attack import Attack
from tests.neighbours.per_user import CHILDREN, EPOLL

FILES = """
def through(n):
    with tempfile.TemporaryDirectory() as folder:
        for each in range(50):
            with open(f"{folder}/{each}", "wb") as file:
                file.write(bytes([n]) * 10_000)
                file.flush()
                os.fsync(file.fileno())
        with open(f"{folder}/49", "rb") as file:
            return file.read()[-1]
"""
MEMORY = """
def through(n):
    memory = mmap.mmap(-1, 64 << 20)
    memory.write(bytes([n]) * (64 << 20))
    return memory[-1]
"""
LOCKS = """
import glob
def through(n):
    for name in [os.path.realpath(sys.executable), os.__file__]:
        with open(name, "rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            fcntl.lockf(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    return n
"""
DEVICES = """
def through(n):
    for name in ("/dev/zero", "/dev/full", "/dev/urandom"):
        with open(name, "rb", buffering=0) as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            fcntl.lockf(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    return n
"""
OWN_LOCKS = """
def through(n):
    with tempfile.TemporaryFile() as file:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 100, n)
    return n
"""
FUTEX = """
import multiprocessing
def through(n):
    lock, value = multiprocessing.Lock(), multiprocessing.Value("i", 0)
    def add():
        with lock:
            value.value += n
    children = [multiprocessing.get_context("fork").Process(target=add) for _ in range(2)]
    for child in children:
        child.start()
    for child in children:
        child.join()
    return value.value // 2
"""
RANDOM = """
def through(n):
    with open("/dev/random", "rb") as file:
        assert len(file.read(10_000) + os.urandom(10_000)) == 20_000
    return n
"""
NESTED = """
import select
def through(n):
    ours, theirs = socket.socketpair()
    with select.epoll() as outer, select.epoll() as inner:
        inner.register(ours, select.EPOLLIN)
        outer.register(inner, select.EPOLLIN)
        theirs.send(bytes([n]))
        assert outer.poll(5)
    return ours.recv(1)[0]
"""

ATTACKS = (
    Attack(
        "open files",
        "fs.file-max, RLIMIT_NOFILE",
        "machine",
        """
def grab():
    return in_children(60, lambda: many(lambda: os.open("/dev/null", os.O_RDONLY), 5000))
""",
        EPOLL,
        "own",
    ),
    Attack(
        "descriptors",
        "RLIMIT_NOFILE, fs.nr_open",
        "control group",
        """
def grab():
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (1 << 20, 1 << 20))
    except (OSError, ValueError):
        pass
    return many(lambda: os.dup(0), 1 << 20)
""",
        EPOLL,
    ),
    Attack(
        "anonymous files",
        "eventfd, timerfd, signalfd, memfd and pidfd in the table of inodes",
        "machine",
        """
def grab():
    def one():
        return (
            checked(libc.eventfd(0, 0)),
            checked(libc.timerfd_create(1, 0)),
            checked(libc.memfd_create(b"x", 0)),
            checked(libc.signalfd(-1, bytes(128), 0)),
        )
    return in_children(4, lambda: many(one, 1000))
""",
        FILES,
    ),
    Attack(
        "memory",
        "memory.max, memory.limit_in_bytes",
        "control group",
        """
def grab():
    def one():
        memory = mmap.mmap(-1, 8 << 20)
        memory.write(b"x" * (8 << 20))
        return memory
    return in_children(1, lambda: many(one, 55))
""",
        MEMORY,
        "own",
    ),
    Attack(
        "address space",
        "vm.overcommit_memory, CommitLimit",
        "machine",
        "def grab(): return many(lambda: mmap.mmap(-1, 4 << 30), 200)",
        MEMORY,
    ),
    Attack(
        "mappings",
        "vm.max_map_count",
        "control group",
        """
def grab():
    def one():
        return mmap.mmap(-1, 4096, prot=mmap.PROT_READ | (len(held) % 2 and mmap.PROT_WRITE))
    return many(one, 70_000)
""",
        MEMORY,
    ),
    Attack(
        "files in memory",
        "the size and nr_inodes of tmpfs",
        "control group",
        """
def grab():
    def one():
        with open("/tmp/held-%d" % len(held), "wb") as file:
            file.write(bytes(1000))
    return many(one, 60_000)
""",
        FILES,
        "own",
    ),
    Attack(
        "shared memory files",
        "the size of /dev/shm",
        "control group",
        """
def grab():
    def one():
        with open("/dev/shm/held-%d" % len(held), "wb") as file:
            file.write(bytes(1 << 20))
    return many(one, 100)
""",
        FUTEX,
    ),
    Attack(
        "names that do not exist",
        "fs.dentry-state: negative entries",
        "machine",
        """
def grab():
    def one():
        try:
            os.stat("/usr/no-%d-%d" % (os.getpid(), len(held)))
        except FileNotFoundError:
            pass
    return many(one, 300_000)
""",
        FILES,
        "own",
    ),
    Attack(
        "locks on shared files",
        "flock(2) on files that are bound into several sandboxes",
        "machine",
        """
def grab():
    got = 0
    for name in [os.path.realpath(sys.executable), os.__file__]:
        file = os.open(name, os.O_RDONLY)
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        held.append(file)
        got += 1
    return got
""",
        LOCKS,
    ),
    Attack(
        "locks on shared devices",
        "flock(2) and fcntl(2) locks on device files that are bound into several sandboxes",
        "machine",
        """
def grab():
    got = 0
    for name in ("/dev/zero", "/dev/full", "/dev/urandom"):
        file = os.open(name, os.O_RDWR)
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        held.append(file)
        got += 1
    return got
""",
        DEVICES,
    ),
    Attack(
        "record locks",
        "RLIMIT_LOCKS, the table of file locks",
        "control group",
        """
def grab():
    file = open("/tmp/locked-%d" % os.getpid(), "wb")
    held.append(file)
    return many(lambda: fcntl.lockf(file, fcntl.LOCK_EX, 1, 2 * len(held)), 20_000)
""",
        OWN_LOCKS,
    ),
    Attack(
        "waiting futexes",
        "the hash table of futexes",
        "machine",
        """
def grab():
    word = mmap.mmap(-1, 4096)
    address = ctypes.c_void_p(ctypes.addressof(ctypes.c_char.from_buffer(word)))
    def one():
        wait = (202 if X86 else 98, address, 0, 0, None, None, 0)
        thread = threading.Thread(target=libc.syscall, args=wait, daemon=True)
        thread.start()
        return thread
    return many(one, 60)
""",
        FUTEX,
        "own",
    ),
    Attack(
        "random bytes",
        "kernel.random.entropy_avail",
        "machine",
        'def grab(): return forever(lambda: open("/dev/random", "rb").read(1 << 16))',
        RANDOM,
        "loud",
    ),
    Attack(
        "nested epolls",
        "the kernel's one lock for epolls of epolls",
        "machine",
        """
import select
def grab():
    inner = [select.epoll() for _ in range(400)]
    outer = select.epoll()
    for each in inner:
        outer.register(each, select.EPOLLIN)
    def one():
        last = select.epoll()
        def again():
            last.register(outer, select.EPOLLIN)
            last.unregister(outer)
        return forever(again)
    return sum(one() for _ in range(3))
""",
        NESTED,
        "loud",
    ),
    Attack(
        "writing back everything",
        "sync(2), which waits for all the machine's disks",
        "machine",
        "def grab(): return sum(forever(os.sync) for _ in range(3))",
        FILES,
        "loud",
    ),
    Attack(
        "pages of shared files",
        "the page cache of files that are bound into several sandboxes",
        "machine",
        """
import glob
def grab():
    folder = os.path.dirname(os.__file__)
    names = [*glob.glob(folder + "/*.py"), *glob.glob(folder + "/lib-dynload/*")]
    files = [os.open(name, os.O_RDONLY) for name in [*names, os.path.realpath(sys.executable)]]
    def drop():
        for file in files:
            os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    return forever(drop)
""",
        CHILDREN,
        "loud",
    ),
    Attack(
        "processor time",
        "cpu.shares, cpu.weight, kernel.sched_autogroup_enabled",
        "machine",
        """
def grab():
    def spin():
        os.setsid()
        while time.monotonic() < end + 30:
            pass
    for _ in range(50):
        if os.fork() == 0:
            try:
                spin()
            finally:
                os._exit(0)
    return 50
""",
        CHILDREN,
        "loud",
    ),
    Attack(
        "barriers",
        "membarrier(2), which interrupts every processor",
        "machine",
        """
def grab():
    call = 324 if X86 else 283
    checked(libc.syscall(call, 4, 0))
    return forever(lambda: checked(libc.syscall(call, 2, 0)))
""",
        CHILDREN,
        "loud",
    ),
    Attack(
        "crashes",
        "kernel.core_pattern, kernel.core_pipe_limit, RLIMIT_CORE",
        "machine",
        """
def grab():
    def crash():
        pid = os.fork()
        if pid == 0:
            os.abort()
        os.waitpid(pid, 0)
    return forever(crash)
""",
        CHILDREN,
        "loud",
    ),
)

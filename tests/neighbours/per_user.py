"""Limits that the kernel counts per user, or per user and user namespace up to the host's."""

from tests.neighbours.attack import Attack

PIPE = """
def through(n):
    reader, writer = os.pipe()
    os.write(writer, bytes(30_000) + n.to_bytes(8, "little"))
    os.close(writer)
    with os.fdopen(reader, "rb") as file:
        return int.from_bytes(file.read()[-8:], "little")
"""
TIMER = """
def through(n):
    signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])
    timer = ctypes.c_void_p()
    checked(function("timer_create")(1, None, ctypes.byref(timer)))
    checked(function("timer_delete")(timer))
    signal.setitimer(signal.ITIMER_REAL, 0.01)
    signal.sigwait([signal.SIGALRM])
    return n
"""
QUEUE = """
def through(n):
    name = b"/work-%d-%d" % (os.getpid(), n)
    sizes = struct.pack("8q", 0, 10, 1024, 0, 0, 0, 0, 0)
    queue = checked(function("mq_open")(name, os.O_CREAT | os.O_RDWR, 0o600, sizes))
    checked(function("mq_unlink")(name))
    checked(function("mq_send")(queue, n.to_bytes(8, "little"), 8, 0))
    buffer = ctypes.create_string_buffer(1024)
    checked(function("mq_receive")(queue, buffer, 1024, None))
    checked(function("mq_close")(queue))
    return int.from_bytes(buffer.raw[:8], "little")
"""
INOTIFY = """
def through(n):
    notices = checked(libc.inotify_init1(0))
    with tempfile.TemporaryDirectory() as folder:
        watch = checked(libc.inotify_add_watch(notices, folder.encode(), 0x100))
        open(f"{folder}/{n}", "w").close()
        seen = os.read(notices, 4096)
        os.close(notices)
    assert struct.unpack_from("i", seen)[0] == watch
    return int(seen[16:].rstrip(b"\\0"))
"""
EPOLL = """
import select
def through(n):
    ends = [socket.socketpair() for _ in range(20)]
    with select.epoll() as poll:
        for ours, theirs in ends:
            poll.register(ours, select.EPOLLIN)
        ends[n % 20][1].send(bytes([n]))
        ((ready, _),) = poll.poll(5)
    value = os.read(ready, 1)[0]
    for ours, theirs in ends:
        ours.close()
        theirs.close()
    return value
"""
PASSED = """
import array
def through(n):
    ours, theirs = socket.socketpair()
    with tempfile.TemporaryFile() as file:
        file.write(b"%d" % n)
        file.flush()
        rights = array.array("i", [file.fileno()] * 3)
        ours.sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
    _, ((_, _, got),), _, _ = theirs.recvmsg(1, 1000)
    first, second, third = struct.unpack("3i", got[:12])
    value = int(os.pread(second, 20, 0))
    for each in (first, second, third):
        os.close(each)
    ours.close()
    theirs.close()
    return value
"""
LOCKED = """
def through(n):
    segment = checked(libc.shmget(0, 4096, 0o1600))
    checked(libc.shmctl(segment, 11, None))
    checked(libc.shmctl(segment, 0, None))
    memory = mmap.mmap(-1, 4096)
    address = ctypes.c_void_p(ctypes.addressof(ctypes.c_char.from_buffer(memory)))
    checked(libc.mlock(address, ctypes.c_size_t(4096)))
    memory[0] = n
    return memory[0]
"""
CHILDREN = """
def through(n):
    threads = [threading.Thread(target=time.sleep, args=(0.01,)) for _ in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return int(subprocess.run(["echo", str(n)], stdout=subprocess.PIPE, check=True).stdout)
"""

ATTACKS = (
    Attack(
        "descriptors in flight",
        "RLIMIT_NOFILE of the sender, against all its user's descriptors in flight",
        "user",
        """
import array
def grab():
    some = array.array("i", [os.open("/dev/null", os.O_RDONLY)] * 250)
    pairs = []
    def send():
        for tries in (1, 2):
            try:
                pairs[-1][0].sendmsg([b"x"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, some)])
                return
            except (BlockingIOError, IndexError):
                pairs.append(socket.socketpair())
                pairs[-1][0].setblocking(False)
    count = 0
    while True:
        try:
            send()
            count += len(some)
        except OSError:
            if len(some) == 1 or time.monotonic() > end:
                held.append(pairs)
                return count
            some = some[: len(some) // 2]
""",
        PASSED,
    ),
    Attack(
        "timers",
        "RLIMIT_SIGPENDING: each POSIX timer holds a queued signal",
        "user",
        """
def grab():
    create = function("timer_create")
    def one():
        timer = ctypes.c_void_p()
        checked(create(1, None, ctypes.byref(timer)))
    return many(one, 200_000)
""",
        TIMER,
    ),
    Attack(
        "queued signals",
        "RLIMIT_SIGPENDING: each sigqueue(3) to somebody who blocks it",
        "user",
        """
def grab():
    signal.pthread_sigmask(signal.SIG_BLOCK, range(signal.SIGRTMIN, signal.SIGRTMAX))
    me, value = os.getpid(), ctypes.c_void_p(0)
    return many(lambda: checked(libc.sigqueue(me, signal.SIGRTMIN + 3, value)), 200_000)
""",
        TIMER,
    ),
    Attack(
        "message queues",
        "RLIMIT_MSGQUEUE: bytes of all POSIX queues of a user",
        "user",
        """
def grab():
    def one(size=[8192]):
        name = b"/held-%d-%d" % (os.getpid(), len(held))
        while True:
            sizes = struct.pack("8q", 0, 10, size[0], 0, 0, 0, 0, 0)
            try:
                return checked(function("mq_open")(name, os.O_CREAT | os.O_RDWR, 0o600, sizes))
            except OSError as error:
                if error.errno != errno.EMFILE or size[0] == 1:
                    raise
                size[0] //= 2
    return many(one, 1000)
""",
        QUEUE,
    ),
    Attack(
        "large pipes",
        "fs.pipe-user-pages-soft, with fs.pipe-max-size",
        "user",
        """
def grab():
    def one():
        pipe = os.pipe()
        try:
            fcntl.fcntl(pipe[1], 1031, 1 << 20)
        except PermissionError:
            if not held:
                raise
        return pipe
    return many(one, 1500)
""",
        PIPE,
    ),
    Attack(
        "many pipes",
        "fs.pipe-user-pages-soft, with pipes of the default size",
        "user",
        "def grab(): return in_children(4, lambda: many(os.pipe, 2000))",
        PIPE,
    ),
    Attack(
        "inotify instances",
        "fs.inotify.max_user_instances, user.max_inotify_instances",
        "user namespace",
        "def grab(): return many(lambda: checked(libc.inotify_init1(0)), 2000)",
        INOTIFY,
    ),
    Attack(
        "inotify watches",
        "fs.inotify.max_user_watches, user.max_inotify_watches",
        "user namespace",
        """
def grab():
    folders = [folder.encode() for folder, _, _ in os.walk("/usr")][:8000]
    def instance():
        notices = checked(libc.inotify_init1(0))
        names = iter(folders)
        return many(lambda: checked(libc.inotify_add_watch(notices, next(names), 0x100)), len(folders))
    return sum(instance() for _ in range(24))
""",
        INOTIFY,
    ),
    Attack(
        "epoll watches",
        "fs.epoll.max_user_watches",
        "user",
        """
import select
def grab():
    ends = [os.eventfd(0) if hasattr(os, "eventfd") else os.dup(os.pipe()[0]) for _ in range(1000)]
    def one():
        poll = select.epoll()
        for each in ends:
            poll.register(each, select.EPOLLIN)
        return poll
    return 1000 * many(one, 700)
""",
        EPOLL,
        "own",
    ),
    Attack(
        "locked shared memory",
        "RLIMIT_MEMLOCK of a user: shmctl(SHM_LOCK)",
        "user",
        """
def grab():
    def one(size=[1 << 20]):
        while True:
            segment = checked(libc.shmget(0, size[0], 0o1600))
            try:
                checked(libc.shmctl(segment, 11, None))
                return segment
            except OSError:
                checked(libc.shmctl(segment, 0, None))
                if size[0] == 4096:
                    raise
                size[0] //= 2
    return many(one, 1000)
""",
        LOCKED,
    ),
    Attack(
        "locked memory",
        "RLIMIT_MEMLOCK of many processes: mlock(2)",
        "control group",
        """
def grab():
    def one():
        memory = mmap.mmap(-1, 64 << 10)
        address = ctypes.c_void_p(ctypes.addressof(ctypes.c_char.from_buffer(memory)))
        checked(libc.mlock(address, ctypes.c_size_t(64 << 10)))
        return memory
    return in_children(20, lambda: many(one, 128))
""",
        LOCKED,
    ),
    Attack(
        "processes",
        "RLIMIT_NPROC, pids.max, kernel.pid_max",
        "control group",
        "def grab(): return in_children(400, lambda: 1)",
        CHILDREN,
        "own",
    ),
    Attack(
        "threads",
        "RLIMIT_NPROC, pids.max, kernel.threads-max",
        "control group",
        """
def grab():
    def one():
        thread = threading.Thread(target=time.sleep, args=(60,), daemon=True)
        thread.start()
        return thread
    return many(one, 2000)
""",
        CHILDREN,
        "own",
    ),
)

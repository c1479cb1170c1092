"""Limits that the kernel counts per namespace, and tables of it that a namespace does not divide."""

from tests.neighbours.attack import Attack
from tests.neighbours.per_user import PIPE

MESSAGE = """
def through(n):
    queue = checked(libc.msgget(0, 0o1600))
    sent = struct.pack("l8s", 1, n.to_bytes(8, "little"))
    checked(libc.msgsnd(queue, sent, 8, 0))
    got = ctypes.create_string_buffer(16)
    checked(libc.msgrcv(queue, got, 8, 0, 0))
    checked(libc.msgctl(queue, 0, None))
    return int.from_bytes(got.raw[8:16], "little")
"""
SEMAPHORE = """
def through(n):
    some = checked(libc.semget(0, 1, 0o1600))
    checked(libc.semctl(some, 0, 16, n))
    value = checked(libc.semctl(some, 0, 12))
    checked(libc.semctl(some, 0, 0))
    return value
"""
SEGMENT = """
def through(n):
    segment = checked(libc.shmget(0, 4096, 0o1600))
    libc.shmat.restype = ctypes.c_void_p
    address = libc.shmat(segment, None, 0)
    ctypes.memset(ctypes.c_void_p(address), n, 1)
    value = ctypes.string_at(ctypes.c_void_p(address), 1)[0]
    checked(libc.shmdt(ctypes.c_void_p(address)))
    checked(libc.shmctl(segment, 0, None))
    return value
"""
TCP = """
def through(n):
    with socket.create_server(("127.0.0.1", 0)) as server:
        with socket.create_connection(server.getsockname(), 5) as ours, server.accept()[0] as theirs:
            ours.sendall(bytes([n]) * 20_000)
            ours.shutdown(socket.SHUT_WR)
            got = b""
            while more := theirs.recv(65536):
                got += more
    assert len(got) == 20_000
    return got[-1]
"""
UDP = """
def through(n):
    with socket.socket(type=socket.SOCK_DGRAM) as ours, socket.socket(type=socket.SOCK_DGRAM) as theirs:
        theirs.bind(("127.0.0.1", 0))
        theirs.settimeout(1)
        for _ in range(4):
            ours.sendto(bytes([n]) * 1000, theirs.getsockname())
            try:
                return theirs.recv(1000)[-1]
            except TimeoutError:
                pass
"""
UNIX = """
def through(n):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as server:
        server.bind("\\0work-%d" % os.getpid())
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as client:
            for each in range(5):
                client.sendto(bytes([n + each]), server.getsockname())
            return server.recv(1)[0]
"""
TERMINAL = """
import pty
def through(n):
    ours, theirs = pty.openpty()
    os.write(ours, b"%d\\n" % n)
    value = int(os.read(theirs, 100))
    os.close(ours)
    os.close(theirs)
    return value
"""
NETLINK = """
def through(n):
    assert "lo" in [name for _, name in socket.if_nameindex()]
    return n
"""

ATTACKS = (
    Attack(
        "System V message queues",
        "kernel.msgmni, kernel.msgmnb, kernel.msgmax",
        "other namespace",
        """
def grab():
    def one():
        queue = checked(libc.msgget(0, 0o1600))
        libc.msgsnd(queue, struct.pack("l4096s", 1, bytes(4096)), 4096, 0o4000)
        return queue
    return many(one, 40_000)
""",
        MESSAGE,
    ),
    Attack(
        "System V semaphores",
        "kernel.sem: SEMMNI, SEMMNS, SEMMSL",
        "other namespace",
        "def grab(): return many(lambda: checked(libc.semget(0, 10, 0o1600)), 40_000)",
        SEMAPHORE,
    ),
    Attack(
        "System V shared memory",
        "kernel.shmmni, kernel.shmall, kernel.shmmax",
        "other namespace",
        "def grab(): return many(lambda: checked(libc.shmget(0, 1 << 30, 0o1600)), 10_000)",
        SEGMENT,
    ),
    Attack(
        "message queue names",
        "fs.mqueue.queues_max",
        "other namespace",
        """
def grab():
    sizes = struct.pack("8q", 0, 1, 1, 0, 0, 0, 0, 0)
    def one():
        name = b"/name-%d-%d" % (os.getpid(), len(held))
        return checked(function("mq_open")(name, os.O_CREAT | os.O_RDWR, 0o600, sizes))
    return many(one, 1000)
""",
        """
def through(n):
    name = b"/named-%d-%d" % (os.getpid(), n)
    sizes = struct.pack("8q", 0, 1, 8, 0, 0, 0, 0, 0)
    queue = checked(function("mq_open")(name, os.O_CREAT | os.O_RDWR, 0o600, sizes))
    checked(function("mq_close")(queue))
    checked(function("mq_unlink")(name))
    return n
""",
    ),
    Attack(
        "local ports",
        "net.ipv4.ip_local_port_range",
        "other namespace",
        """
def grab():
    def one():
        some = socket.socket(type=socket.SOCK_DGRAM)
        some.bind(("127.0.0.1", 0))
        return some
    return in_children(9, lambda: many(one, 3500))
""",
        UDP,
    ),
    Attack(
        "TCP memory",
        "net.ipv4.tcp_mem, net.ipv4.tcp_max_orphans",
        "machine",
        """
def grab():
    server = socket.create_server(("127.0.0.1", 0), backlog=400)
    held.append(server)
    def one():
        ours = socket.create_connection(server.getsockname(), 5)
        held.append(server.accept()[0])
        ours.setblocking(False)
        try:
            while True:
                ours.send(bytes(1 << 20))
        except BlockingIOError:
            return ours
    return many(one, 60)
""",
        TCP,
        "own",
    ),
    Attack(
        "UDP memory",
        "net.ipv4.udp_mem",
        "machine",
        """
def grab():
    ours = socket.socket(type=socket.SOCK_DGRAM)
    def one():
        theirs = socket.socket(type=socket.SOCK_DGRAM)
        theirs.bind(("127.0.0.1", 0))
        for _ in range(100):
            ours.sendto(bytes(4000), theirs.getsockname())
        return theirs
    return many(one, 1000)
""",
        UDP,
    ),
    Attack(
        "time-wait sockets",
        "net.ipv4.tcp_max_tw_buckets",
        "other namespace",
        """
def grab():
    server = socket.create_server(("127.0.0.1", 0))
    held.append(server)
    def one():
        ours = socket.create_connection(server.getsockname(), 5)
        theirs = server.accept()[0]
        ours.close()
        theirs.close()
    return many(one, 10_000)
""",
        TCP,
    ),
    Attack(
        "abstract names and unread datagrams",
        "net.unix.max_dgram_qlen, the table of unix(7) names",
        "other namespace",
        """
def grab():
    def one():
        some = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        name = "\\0held-%d-%d" % (os.getpid(), len(held))
        some.bind(name)
        other = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        other.setblocking(False)
        try:
            while True:
                other.sendto(bytes(1000), name)
        except BlockingIOError:
            return some, other
    return many(one, 1500)
""",
        UNIX,
    ),
    Attack(
        "terminals",
        "kernel.pty.max",
        "machine",
        """
def grab():
    return in_children(3, lambda: many(lambda: os.open("/dev/ptmx", os.O_RDWR | os.O_NOCTTY), 2500))
""",
        TERMINAL,
    ),
    Attack(
        "asynchronous I/O",
        "fs.aio-max-nr",
        "machine",
        """
def grab():
    taken = 0
    for size in (8000, 500, 30, 1):
        def one():
            context = ctypes.c_ulong(0)
            checked(libc.syscall(206 if X86 else 0, size, ctypes.byref(context)))
        try:
            taken += size * many(one, 20_000 // size)
        except OSError:
            if size == 1 and not taken:
                raise
    return taken
""",
        PIPE,
    ),
    Attack(
        "netlink requests",
        "the kernel's lock of network interfaces",
        "machine",
        """
def grab():
    asked = struct.pack("IHHII", 17, 18, 0x301, 1, 0) + b"\\0"
    some = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0)
    def ask():
        some.send(asked)
        some.recv(65536)
    return forever(ask)
""",
        NETLINK,
        "loud",
    ),
    Attack(
        "loopback packets",
        "net.core.netdev_max_backlog, a queue for each processor",
        "machine",
        """
def grab():
    ours, theirs = socket.socket(type=socket.SOCK_DGRAM), socket.socket(type=socket.SOCK_DGRAM)
    theirs.bind(("127.0.0.1", 0))
    place = theirs.getsockname()
    return sum(forever(lambda: ours.sendto(b"x", place)) for _ in range(3))
""",
        UDP,
        "loud",
    ),
)

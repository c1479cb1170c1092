"""Attacks by sockets: addresses that stay taken, and descriptors that are on their way."""

import array
import fcntl
import os
import socket
import struct
from contextlib import suppress

from tests.reset.attacks.means import MARK, PORT, attack, daemon, libc


def _abstract(kind: int = socket.SOCK_STREAM) -> socket.socket:
    bound = socket.socket(socket.AF_UNIX, kind)
    bound.bind(f"\0{MARK}")
    return bound


def _tcp(protocol: int = 0) -> socket.socket:
    bound = socket.socket(socket.AF_INET, socket.SOCK_STREAM, protocol)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    bound.bind(("127.0.0.1", PORT))
    bound.listen()
    return bound


@attack("local docker")
def an_abstract_socket() -> None:
    def listen() -> None:
        globals().update(kept=_abstract())
        globals()["kept"].listen()

    daemon(listen)


@attack("local docker")
def a_socket_with_a_path() -> None:
    def listen() -> None:
        bound = socket.socket(socket.AF_UNIX)
        bound.bind(f"/tmp/{MARK}")
        bound.listen()
        globals().update(kept=bound)

    daemon(listen)


@attack("local docker")
def listeners() -> None:
    def listen() -> None:
        udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        udp.bind(("127.0.0.1", PORT))
        six = socket.socket(socket.AF_INET6)
        with suppress(OSError):
            six.bind(("::1", PORT + 1))
            six.listen()
        globals().update(kept=[_tcp(), udp, six])

    daemon(listen)


def _connected() -> tuple[socket.socket, socket.socket, socket.socket]:
    listener = _tcp()
    client = socket.create_connection(("127.0.0.1", PORT))
    return listener, listener.accept()[0], client


@attack("")
def a_port_that_waits() -> None:
    """Its connection would be in TIME_WAIT for a minute, and nobody else could have the port."""
    listener, server, client = _connected()
    server.close()
    assert client.recv(1) == b""
    client.close()
    listener.close()


@attack("maybe", costs="local docker")
def multipath_connections() -> None:
    """One that ended, one whose ends died with data on its way, and one that nobody took."""
    with suppress(OSError):
        listener = _tcp(262)
        for last in (False, True):
            client = socket.socket(socket.AF_INET, socket.SOCK_STREAM, 262)
            client.connect(("127.0.0.1", PORT))
            server = listener.accept()[0]
            if not last:
                server.close()
                client.close()
                continue
            client.setblocking(False)
            with suppress(BlockingIOError):
                while client.send(bytes(1 << 16)):
                    pass
        socket.socket(socket.AF_INET, socket.SOCK_STREAM, 262).connect(("127.0.0.1", PORT))


@attack("maybe", costs="local docker")
def connections_cut_short() -> None:
    for _ in range(20):
        listener, server, client = _connected()
        for end in (client, server):
            end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            end.send(bytes(1000))
        client.close()
        server.close()
        listener.close()


@attack("local docker", costs="local docker")
def a_connection_that_hangs() -> None:
    """Its queue is full, and both ends are gone at once."""

    def fill() -> None:
        listener, server, client = _connected()
        for end in (server, client):
            end.setblocking(False)
            with suppress(BlockingIOError):
                while True:
                    end.send(bytes(1 << 16))
        globals().update(kept=[listener, server, client])

    daemon(fill)


@attack("local docker", costs="local docker")
def half_closed_connections() -> None:
    def close() -> None:
        listener, server, client = _connected()
        server.shutdown(socket.SHUT_WR)
        waiting = [socket.create_connection(("127.0.0.1", PORT)) for _ in range(5)]
        globals().update(kept=[listener, server, client, waiting])

    daemon(close)


def _label(linger: int = 0) -> socket.socket:
    """Take a flow label for oneself."""
    own = socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
    request = socket.inet_pton(socket.AF_INET6, "::1") + struct.pack("!I", 0x5EED)
    request += struct.pack("=BBHHHI", 0, 1, 1, 0, linger, 0)  # get, exclusive, create
    own.setsockopt(socket.IPPROTO_IPV6, 32, request)
    return own


def take_label() -> dict[str, object]:
    """Whether that can be had."""
    try:
        _label().close()
    except OSError as error:
        return {"label": error.errno}
    return {"label": "taken"}


@attack("maybe", feel=take_label, costs="local docker")
def a_flow_label_that_lingers() -> None:
    with suppress(OSError):
        _label(60).close()


def _in_flight(*descriptors: int) -> None:
    """Send them, and the sockets that they are sent by, over these: nobody has them any more."""
    one, two = socket.socketpair()
    rights = array.array("i", [*descriptors, one.fileno(), two.fileno()])
    one.sendmsg([b"1"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
    two.sendmsg([b"1"], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)])
    one.detach()
    two.detach()


@attack("maybe", costs="local docker")
def addresses_in_flight() -> None:
    """Nothing but the kernel's collector ends these sockets."""
    abstract = _abstract()
    abstract.listen()
    tcp = _tcp()
    udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    udp.bind(("127.0.0.1", PORT))
    _in_flight(abstract.fileno(), tcp.fileno(), udp.fileno())


@attack("maybe", costs="local docker")
def space_in_flight() -> None:
    descriptor = os.open(f"/tmp/{MARK}", os.O_CREAT | os.O_RDWR)
    os.write(descriptor, bytes(8 << 20))
    os.unlink(f"/tmp/{MARK}")
    _in_flight(descriptor, libc.memfd_create(b"flight", 0), *os.openpty())


@attack("maybe", costs="local docker")
def locks_in_flight() -> None:
    descriptors = [os.open(path, os.O_RDONLY) for path in ("/etc/passwd", "/etc/group")]
    for descriptor in descriptors:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    _in_flight(*descriptors)


@attack("local docker")
def descriptors_in_a_living_queue() -> None:
    def hold() -> None:
        bound = _abstract(socket.SOCK_DGRAM)
        sender = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        rights = array.array("i", [os.open("/etc/passwd", os.O_RDONLY), *os.openpty()])
        fcntl.flock(rights[0], fcntl.LOCK_EX)
        ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, rights)]
        sender.sendmsg([b"1"], ancillary, 0, f"\0{MARK}")
        globals().update(kept=bound)

    daemon(hold)

"""A loopback TCP port that leads to a unix socket, as `socat` would make one, with TLS or not."""

import contextlib
import socket
import ssl
import threading
from types import TracebackType
from typing import Self


class TcpBridge:
    """Listens until it is left; every connection and each direction's end is passed on.

    With the `port` of another one that was left, it listens in its place.
    """

    def __init__(self, path: str, tls: ssl.SSLContext | None = None, port: int = 0) -> None:
        self._path = path
        self._tls = tls
        self._listener = socket.create_server(("127.0.0.1", port))
        self.port = self._listener.getsockname()[1]
        self.url = f"tcp://127.0.0.1:{self.port}"
        self.connections = 0
        self._open: list[socket.socket] = []

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # shutdown wakes the threads that wait on these; close alone would not.
        for end in [self._listener, *self._open]:
            with contextlib.suppress(OSError):
                socket.socket.shutdown(end, socket.SHUT_RDWR)
            end.close()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            if self._tls is not None:
                try:
                    near = self._tls.wrap_socket(near, server_side=True)
                except OSError:
                    near.close()
                    continue
            far = socket.socket(socket.AF_UNIX)
            far.connect(self._path)
            self._open += [near, far]
            for source, target in ((near, far), (far, near)):
                threading.Thread(target=_copy, args=(source, target), daemon=True).start()


def _copy(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(1 << 16):
            target.sendall(data)
    with contextlib.suppress(OSError):
        # TLS has no half-close; and SSLSocket's own shutdown would strip the other thread of it.
        whole = isinstance(target, ssl.SSLSocket) or isinstance(source, ssl.SSLSocket)
        socket.socket.shutdown(target, socket.SHUT_RDWR if whole else socket.SHUT_WR)

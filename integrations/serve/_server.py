"""The server process of one replica, and the time limits of its connections."""

import asyncio
import re
import resource
import signal
import socket
import sys
from typing import ClassVar

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from sandboxkit import ConfigurationError
from sandboxkit.integrations.serve._app import create_app
from sandboxkit.integrations.serve._config import ServiceConfig
from sandboxkit.integrations.serve._gate import is_loopback

_KEEP_ALIVE = 75
"""Seconds after which an idle connection is closed. Most clients close idle connections sooner, so they
never send a request on one that the server is closing."""
_HEAD_SECONDS = 20.0
"""How long a client may take for the head of a request, as with Apache; nobody knows yet who it is."""
_BODY_SECONDS = 60.0
"""How long a client may take to send the next piece of a body, and to take the next piece of a response."""
_MOST_HEAD = 64 << 10
_MOST_CHUNKS = 1024
"""How many chunks of less than 256 bytes may come at once: each costs as much as a large one."""
_SMALL_CHUNK = re.compile(rb"\r\n0*[\da-fA-F]{1,2}[ \t]*(?:;[^\r\n]*)?\r\n")
_MOST_FILES = 65_536


def serve(
    config: ServiceConfig | None = None, *, host: str = "127.0.0.1", port: int = 8080
) -> None:
    """Serve until SIGTERM or Ctrl-C; requests in progress may then finish within `drain` seconds.

    Raises ConfigurationError if `host` is not a loopback address and the service has no tokens, because
    everyone who can reach the port could use the sandboxes.
    """
    config = config or ServiceConfig()
    if not config.tokens and not is_loopback(host):
        raise ConfigurationError(
            f"host={host!r} can be reached from other machines: give tokens, or use 127.0.0.1"
        )
    TimedConnection.most_waiting = min(TimedConnection.most_waiting, raise_file_limit() // 4)
    try:
        with socket.create_server((host, port), family=_family(host)):
            pass
    except OSError as error:
        raise ConfigurationError(
            f"the service cannot listen on {host}:{port}: {error}; choose another port"
        ) from error
    # At SIGTERM uvicorn drains, and then raises the signal again for the handler that was set before.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    uvicorn.run(
        create_app(config),
        host=host,
        port=port,
        http=TimedConnection,
        ws="wsproto",
        access_log=False,  # the metrics record requests
        timeout_graceful_shutdown=int(config.drain),
        timeout_keep_alive=_KEEP_ALIVE,
    )


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


class TimedConnection(H11Protocol):
    """HTTP as uvicorn reads it, with time limits for the head and the body of a request.

    When too many connections have sent no whole head, the one that has waited longest is closed.
    """

    most_waiting: ClassVar[int] = 512
    _waiting: ClassVar[dict["TimedConnection", None]] = {}
    """The connections without a whole head, the oldest first."""
    _timer: asyncio.TimerHandle | None = None
    _stuck: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as uvicorn's
        """Begin to wait for the first head."""
        super().connection_made(transport)
        self._wait_for_head()

    def data_received(self, data: bytes) -> None:
        """Read a piece, and wait for the next one if the request is not whole."""
        if self._reads_head() and self._timer is None:
            self._wait_for_head()
        if self._reads_head():
            chunked, large = b"chunked" in data.lower(), b"\r\n\r\n" not in data[:_MOST_HEAD]
        else:
            chunked, large = b"transfer-encoding" in dict(self.headers), False
        small = chunked and len(_SMALL_CHUNK.findall(data)) > _MOST_CHUNKS
        if small or (large and len(data) > _MOST_HEAD):
            self.transport.close()
        else:
            super().data_received(data)
        if self.transport.get_protocol() is not self or not self._reads_head():
            self._stop_waiting()
            if self.cycle is not None and self.cycle.more_body:
                self._wait(_BODY_SECONDS)

    def pause_writing(self) -> None:
        """Give up if the client takes nothing for too long."""
        super().pause_writing()
        self._stuck = self.loop.call_later(_BODY_SECONDS, self.transport.abort)

    def resume_writing(self) -> None:
        """Go on; the client has taken something."""
        super().resume_writing()
        if self._stuck is not None:
            self._stuck.cancel()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop waiting."""
        self._stop_waiting()
        self.resume_writing()
        super().connection_lost(exc)

    def _reads_head(self) -> bool:
        return self.cycle is None or self.cycle.response_complete

    def _wait_for_head(self) -> None:
        self._wait(_HEAD_SECONDS)
        self._waiting[self] = None
        if len(self._waiting) > self.most_waiting:
            next(iter(self._waiting))._give_up()

    def _wait(self, seconds: float) -> None:
        self._timer = self.loop.call_later(seconds, self._give_up)

    def _stop_waiting(self) -> None:
        self._waiting.pop(self, None)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _give_up(self) -> None:
        self._stop_waiting()
        if not self._reads_head() and self.flow.read_paused:
            self._wait(_BODY_SECONDS)  # it is this side that does not read
        else:
            self.transport.close()


def raise_file_limit() -> int:
    """Let this process open as many files as it may, at most 65,536; return how many that is."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, _MOST_FILES)
    if soft < most:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    return max(soft, most)

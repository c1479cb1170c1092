"""The server process of one replica."""

import signal
import sys

import uvicorn

from sandboxkit import ConfigurationError
from sandboxkit.integrations.serve._app import create_app
from sandboxkit.integrations.serve._config import ServiceConfig
from sandboxkit.integrations.serve._connections import TimedConnection, raise_file_limit
from sandboxkit.integrations.serve._gate import is_loopback

_KEEP_ALIVE = 75
"""Seconds after which an idle connection is closed. Most clients close idle connections sooner, so they
never send a request on one that the server is closing."""


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

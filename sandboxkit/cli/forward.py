"""`sandboxkit forward`: make a port of a running sandbox reachable on this machine."""

import argparse

from sandboxkit import Sandbox
from sandboxkit.cli import _find, _options
from sandboxkit.cli._text import safe_line
from sandboxkit.errors import ConfigurationError, SandboxNotFoundError, SandboxTerminatedError
from sandboxkit.tunnels import Exposed
from sandboxkit.types import SandboxState

_LOOK_SECONDS = 5.0
_EPILOG = """\
HOST is a port of this machine's loopback, as in docker -p HOST:PORT; without
it, a free port is used. Any process of this machine can connect to it. The port
is closed at Ctrl-C, or when the sandbox ends. The sandbox needs no network.

example:
  sandboxkit forward local-0123456789abcdef 9000:8000   # 127.0.0.1:9000 here
"""


def add(verbs: _options.Verbs) -> None:
    """Add the verb to the command line."""
    parser = verbs.add_parser(
        "forward",
        help="make a sandbox's port reachable on this machine",
        description="Forward a port of this machine to a port of a running sandbox's loopback.",
        epilog=_EPILOG,
    )
    _options.provider(parser, _options.FOUND)
    parser.add_argument("id", metavar="ID", help="a sandbox, as 'sandboxkit ls' shows it")
    parser.add_argument("port", metavar="[HOST:]PORT", help="such as 8000, or 9000:8000")
    parser.set_defaults(verb=main)


def main(args: argparse.Namespace) -> int:
    """Run the verb."""
    port, host = _ports(args.port)
    with (
        _find.reached(args, args.id) as sandbox,
        sandbox.expose(port, host_port=host).result() as exposed,
    ):
        print(f"{exposed.url} forwards to port {port} of {safe_line(str(sandbox.id))}", flush=True)
        _wait(sandbox, exposed)
    return 0


def _ports(given: str) -> tuple[int, int]:
    """Return the sandbox's port, and this machine's, which is 0 if it is not given."""
    host, colon, port = given.rpartition(":")
    if not port.isdecimal() or (colon and not host.isdecimal()):
        raise ConfigurationError(f"{given!r} is no port: write 8000, or HOST:PORT as 9000:8000")
    return int(port), int(host or 0)


def _wait(sandbox: Sandbox, exposed: Exposed) -> None:
    """Wait until the port closes or the sandbox ends; check every 5 s whether it has ended."""
    closed = exposed.wait()
    while True:
        try:
            return closed.result(_LOOK_SECONDS)
        except TimeoutError:
            pass
        try:
            if sandbox.status().result().state is not SandboxState.STOPPED:
                continue
        except (SandboxNotFoundError, SandboxTerminatedError):
            pass
        return None

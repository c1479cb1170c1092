"""`sandboxkit serve`: an HTTP service that grades submissions and runs programs for other machines."""

import argparse
import importlib
from pathlib import Path

from sandboxkit.cli import _options

_EPILOG = """\
A request is graded or run in a sandbox of the backend. /docs lists the paths;
/run_code is SandboxFusion's, for verl's sandbox_fusion.url, and /slime is for
slime's --rm-url.

--tokens names a file with a line NAME SECRET [QUOTA] for each client. QUOTA is
how many submissions and programs of that client may run or wait. Without tokens
the service listens on this machine's loopback only.

SIGTERM ends it: requests in progress may finish within --drain.

example:
  sandboxkit serve -p docker --host 0.0.0.0 --tokens tokens.txt
  curl -H 'Authorization: Bearer SECRET' http://HOST:8080/v1/run \\
    -H 'Content-Type: application/json' -d '{"code": "print(6 * 7)"}'
"""

_ALLOWED = {
    "image": "an image that clients may name, or a pattern such as 'python:*'; repeatable",
    "network": "internet: clients may name it; on local it has this machine's loopback",
    "user": "a user that clients may name, such as root; repeatable",
    "gpu": "GPUs that clients may name, such as 1; repeatable",
}
_LIMITS = {
    "memory_mb": "the most memory of a client's sandbox or program, in MiB (2048)",
    "cpus": "the most processors of a client's sandbox (2)",
    "disk_mb": "the most MiB that a client's sandbox may write (1024)",
    "pids": "the most processes of a client's sandbox (256)",
}


def add(verbs: _options.Verbs) -> None:
    """Add the verb to the command line."""
    parser = verbs.add_parser(
        "serve",
        help="grade and run programs for other machines, over HTTP",
        description="Serve grading, programs and sandboxes over HTTP.",
        epilog=_EPILOG,
    )
    _options.provider(parser)
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (127.0.0.1)")
    parser.add_argument("--port", type=_options.port, default=8080, help="port to listen on (8080)")
    parser.add_argument("--tokens", metavar="FILE", type=Path, help="the clients' tokens")
    parser.add_argument("--pool", metavar="N", type=int, help="sandboxes to keep warm")
    parser.add_argument(
        "--queue", metavar="N", type=int, default=2048, help="requests that run or wait (2048)"
    )
    parser.add_argument(
        "--sandboxes",
        metavar="N",
        type=int,
        default=64,
        help="sandboxes that clients may hold (64)",
    )
    parser.add_argument(
        "--lifetime",
        metavar="TIME",
        type=_options.seconds,
        default=3600.0,
        help="lifetime of a client's sandbox (1h)",
    )
    parser.add_argument(
        "--deadline",
        metavar="TIME",
        type=_options.seconds,
        default=600.0,
        help="time limit of a request (10m)",
    )
    parser.add_argument(
        "--drain",
        metavar="TIME",
        type=_options.seconds,
        default=120.0,
        help="time limit of running requests after SIGTERM (2m)",
    )
    parser.add_argument(
        "--tag",
        metavar="TAG",
        action="append",
        default=[],
        help="a tag for all sandboxes; repeatable",
    )
    for name, text in _ALLOWED.items():
        known, value = ["internet"] if name == "network" else None, name.upper()
        parser.add_argument(
            f"--allow-{name}", metavar=value, choices=known, action="append", default=[], help=text
        )
    for name, text in _LIMITS.items():
        kind, flag = float if name == "cpus" else int, f"--max-{name.replace('_', '-')}"
        parser.add_argument(flag, dest=name, metavar="N", type=kind, help=text)
    parser.add_argument("--profile", choices=["strict"], help="that of every client's sandbox")
    parser.set_defaults(verb=main)


def main(args: argparse.Namespace) -> int:
    """Run the verb."""
    # Imported by name and lazily: the command line must work without the integrations.
    service = importlib.import_module("sandboxkit.integrations.serve")
    limits = {name: getattr(args, name) for name in (*_LIMITS, "profile")}
    config = service.ServiceConfig(
        provider=args.provider,
        tokens=service.read_tokens(args.tokens) if args.tokens else (),
        pool=args.pool,
        queue=args.queue,
        sandboxes=args.sandboxes,
        lifetime=args.lifetime,
        deadline=args.deadline,
        drain=args.drain,
        tags=("sandboxkit-serve", *args.tag),
        options={name: value for name, value in limits.items() if value is not None},
        allow={name: getattr(args, f"allow_{name}") for name in _ALLOWED},
    )
    service.serve(config, host=args.host, port=args.port)
    return 0

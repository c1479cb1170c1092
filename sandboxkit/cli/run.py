"""`sandboxkit run`: run one command in a new sandbox."""

import argparse

from sandboxkit import Session
from sandboxkit.cli import _options, _streams
from sandboxkit.errors import ConfigurationError

_USAGE = "sandboxkit run [OPTIONS] [--] COMMAND [ARGUMENT]..."
_EPILOG = """\
Exits with the command's own status; 124 if it ran past --timeout, 125 if the
sandbox failed.

examples:
  sandboxkit run python3 -c 'print(6 * 7)'
  echo hello | sandboxkit run -i tr a-z A-Z
  sandboxkit run --timeout 5s --memory-mb 256 -- python3 untrusted.py
  sandboxkit run --allow github.com git clone https://github.com/git/git
  sandboxkit run -d --tag run:42 --lifetime 2h    # keeps running; prints its id
"""


def add(verbs: _options.Verbs) -> None:
    """Add the verb to the command line."""
    parser = verbs.add_parser(
        "run",
        help="run a command in a fresh sandbox",
        description="Run a command in a fresh sandbox, which is deleted afterwards.",
        usage=_USAGE,
        epilog=_EPILOG,
    )
    _options.provider(parser)
    _options.command(parser)
    parser.add_argument(
        "-d",
        "--detach",
        action="store_true",
        help="leave the sandbox running and print its id; the command, if any, is its main command",
    )
    _options.sandbox(parser)
    parser.add_argument("argv", nargs=argparse.REMAINDER, metavar="COMMAND [ARGUMENT]...")
    parser.set_defaults(verb=main)


def main(args: argparse.Namespace) -> int:
    """Run the verb."""
    argv = _options.argv(args.argv, _USAGE)
    if args.detach:
        return _detach(args, argv)
    if not argv:
        raise ConfigurationError(f"no command given; write: {_USAGE}")
    with Session(args.provider, **_options.spec(args)) as session:
        if args.tty:
            from sandboxkit.cli import _terminal  # needs termios, which some platforms lack

            env = _terminal.TERM
            return _terminal.attach(
                lambda size: session.run(argv, timeout=args.timeout, pty=size, env=env)
            )
        process = session.run(
            argv,
            timeout=args.timeout,
            stdin=True if args.interactive else None,
            output_limit=_streams.KEPT,
        )
        return _streams.join(process, stdin=args.interactive)


def _detach(args: argparse.Namespace, argv: list[str]) -> int:
    for option, given in (("-i", args.interactive), ("-t", args.tty), ("--timeout", args.timeout)):
        if given:
            raise ConfigurationError(
                f"{option} does not go with --detach; --lifetime bounds the sandbox"
            )
    if args.allow and not args.native:
        raise ConfigurationError(
            "--allow does not go with --detach: this process, which ends at once, makes the connections; "
            "a vendor's own list (--native) does"
        )
    with Session(args.provider, **_options.spec(args)) as session:
        sandbox = session.sandbox(command=argv or None, detach=True).start().result()
        print(sandbox.id)
    return 0

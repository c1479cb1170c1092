"""`sandboxkit exec`: run one command in a running sandbox."""

import argparse

from sandboxkit.cli import _find, _options, _streams
from sandboxkit.errors import ConfigurationError

_USAGE = "sandboxkit exec [OPTIONS] ID [--] COMMAND [ARGUMENT]..."


def add(verbs: _options.Verbs) -> None:
    """Add the verb to the command line."""
    parser = verbs.add_parser(
        "exec",
        help="run a command in a running sandbox",
        description="Run a command in a running sandbox, which keeps running afterwards.",
        usage=_USAGE,
        epilog="Exits with the command's own status; 124 if it ran past --timeout, 125 if the sandbox "
        "failed.",
    )
    _options.provider(parser, _options.FOUND)
    parser.add_argument("-i", "--interactive", action="store_true", help="pass standard input on")
    parser.add_argument("-t", "--tty", action="store_true", help="run the command on a terminal")
    parser.add_argument(
        "--timeout",
        type=_options.seconds,
        metavar="TIME",
        help="kill the command after TIME, such as 10 or 5m",
    )
    _options.command(parser)
    parser.add_argument("id", metavar="ID", help="a sandbox, as 'sandboxkit ls' shows it")
    parser.add_argument("argv", nargs=argparse.REMAINDER, metavar="COMMAND [ARGUMENT]...")
    parser.set_defaults(verb=main)


def main(args: argparse.Namespace) -> int:
    """Run the verb."""
    argv = _options.argv(args.argv, _USAGE)
    if not argv:
        raise ConfigurationError(f"no command given; write: {_USAGE}")
    options = _options.command_keywords(args)
    with _find.reached(args, args.id) as sandbox:
        if args.tty:
            from sandboxkit.cli import _terminal  # needs termios, which some platforms lack

            options["env"] = {**_terminal.TERM, **options["env"]}
            return _terminal.attach(
                lambda size: sandbox.exec(argv, timeout=args.timeout, pty=size, **options)
            )
        process = sandbox.exec(
            argv,
            timeout=args.timeout,
            stdin=True if args.interactive else None,
            output_limit=_streams.KEPT,
            **options,
        )
        return _streams.join(process, stdin=args.interactive)

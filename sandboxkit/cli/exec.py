"""`sandboxkit exec`: run one command in a running sandbox."""

import argparse
import functools

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
    _options.command(parser)
    parser.add_argument(
        "-e",
        "--env",
        metavar="K=V",
        action="append",
        default=[],
        help="set a variable; K alone copies yours",
    )
    parser.add_argument("-w", "--workdir", metavar="DIR", help="directory to start in")
    parser.add_argument("-u", "--user", help="user name or uid")
    parser.add_argument("id", metavar="ID", help="a sandbox, as 'sandboxkit ls' shows it")
    parser.add_argument("argv", nargs=argparse.REMAINDER, metavar="COMMAND [ARGUMENT]...")
    parser.set_defaults(verb=main)


def main(args: argparse.Namespace) -> int:
    """Run the verb."""
    argv = _options.argv(args.argv, _USAGE)
    if not argv:
        raise ConfigurationError(f"no command given; write: {_USAGE}")
    env = dict(map(_options.variable, args.env))
    with _find.reached(args, args.id) as sandbox:
        run = functools.partial(
            sandbox.exec, argv, cwd=args.workdir, user=args.user, timeout=args.timeout
        )
        if args.tty:
            from sandboxkit.cli import _terminal  # needs termios, which some platforms lack

            return _terminal.attach(lambda size: run(pty=size, env={**_terminal.TERM, **env}))
        stdin = True if args.interactive else None
        process = run(env=env, stdin=stdin, output_limit=_streams.KEPT)
        return _streams.join(process, stdin=args.interactive)

"""`sandboxkit shell`: open an interactive shell in a running or a new sandbox."""

import argparse

from sandboxkit import Session
from sandboxkit.cli import _find, _options
from sandboxkit.errors import ConfigurationError
from sandboxkit.options import ALL_OPTIONS

# Use bash if the image has it; every image has sh.
_SHELL = ("sh", "-c", "command -v bash >/dev/null && exec bash || exec sh")


def add(verbs: _options.Verbs) -> None:
    """Add the verb to the command line."""
    parser = verbs.add_parser(
        "shell",
        help="open an interactive shell",
        description="Open a shell in the sandbox ID, or in a fresh one that is deleted when you leave.",
        epilog="Exits with the shell's own status; 125 if the sandbox failed.",
    )
    _options.provider(parser)
    _options.sandbox(parser)
    parser.add_argument("id", metavar="ID", nargs="?", help="a running sandbox")
    parser.set_defaults(verb=main)


def main(args: argparse.Namespace) -> int:
    """Run the verb."""
    from sandboxkit.cli import _terminal  # needs termios, which some platforms lack

    spec = _options.spec(args)
    if args.id is None:
        with Session(args.provider, **spec) as session:
            sandbox = session.sandbox()
            return _terminal.attach(lambda size: sandbox.exec(_SHELL, pty=size, env=_terminal.TERM))

    unusable = set(spec) - {"env", "user", "workdir"}
    if unusable:
        flags = [
            _options.spelling(option)[0][-1] for option in ALL_OPTIONS if option.name in unusable
        ]
        raise ConfigurationError(
            f"{', '.join(flags)}: only for a fresh sandbox; {args.id!r} is running already"
        )
    env = {**_terminal.TERM, **spec.get("env", {})}
    with _find.reached(args, args.id) as running:
        return _terminal.attach(
            lambda size: running.exec(_SHELL, pty=size, env=env, user=args.user, cwd=args.workdir)
        )

"""The `sandboxkit` command line: one module per verb, plus shared helpers."""

import argparse
import contextlib
import errno
import os
import resource
import sys
from collections.abc import Callable, Sequence

import sandboxkit._distribution  # noqa: F401 - first: it refuses a mix of two packages
from sandboxkit import __version__, _distribution
from sandboxkit._life import _exit
from sandboxkit.cli import (
    _help,
    _options,
    bake,
    cleanup,
    completion,
    cp,
    demo,
    doctor,
    exec,
    forward,
    grpo,
    images,
    inspect,
    logs,
    ls,
    mcp,
    recording,
    run,
    serve,
    shell,
    snapshots,
    stop,
    tasks,
    top,
    usage,
    volumes,
)
from sandboxkit.cli._text import complain
from sandboxkit.errors import (
    CommandStartError,
    ConfigurationError,
    SandboxError,
    SandboxPausedError,
)

__all__ = ["main"]

USAGE, INFRASTRUCTURE = 2, 125
NOT_EXECUTABLE, NOT_FOUND = 126, 127

_EPILOG = """\
exit codes:
  0    success; run, exec and shell return the command's own status
  1    some failed (verbs with several parts, such as ls, pause and stop)
  2    wrong usage or configuration
  124  the command ran past --timeout
  125  the sandbox or its backend failed
  126  the command cannot be executed
  127  the command, or the directory to start it in, does not exist
  130  interrupted

SANDBOXKIT_PROVIDER selects the backend if --provider is not given. An ID is
looked up at all configured backends; a unique prefix of it suffices.
"""

_VERBS = (
    demo,
    run,
    exec,
    shell,
    ls,
    inspect,
    cp,
    forward,
    logs,
    stop,
    cleanup,
    volumes,
    snapshots,
    images,
    recording,
    bake,
    doctor,
    top,
    usage,
    grpo,
    tasks,
    mcp,
    serve,
    completion,
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    with contextlib.suppress(
        OSError, ValueError
    ):  # as Go and Node do; a library leaves it to its program
        hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    parser = build_parser()
    args = parser.parse_args(argv)
    if "verb" not in args:
        parser.print_help(sys.stderr)
        return USAGE
    verb: Callable[[argparse.Namespace], int] = args.verb
    try:
        code = verb(args)
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        _exit.abandon()
        return 130
    except BrokenPipeError:
        # The reader has closed the pipe (`| head`): print no error, not even from the final flush.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != "rich":
            raise
        return _fail(f"this verb needs the package 'rich': {_distribution.install('cli')}", USAGE)
    except (SandboxError, OSError, ExceptionGroup) as error:
        return max(_report(each) for each in _flat(error))


def build_parser() -> argparse.ArgumentParser:
    """Build the parser of the whole command line; `completion` reads it too."""
    parser = _help.Parser(
        prog="sandboxkit",
        description="Run untrusted programs in sandboxes, and manage the sandboxes.",
        epilog=_EPILOG,
    )
    parser.add_argument("--version", action="version", version=f"sandboxkit {__version__}")
    parser.set_defaults(provider=None)
    _options.provider(parser)
    verbs = parser.add_subparsers(title="verbs", metavar="VERB")
    for module in _VERBS:
        module.add(verbs)
    _help.apply(parser)
    return parser


def _report(error: Exception) -> int:
    if not isinstance(error, SandboxError | OSError):
        raise error
    if isinstance(error, CommandStartError) and not error.retryable:
        return _fail(str(error), NOT_FOUND if error.errno == errno.ENOENT else NOT_EXECUTABLE)
    if isinstance(error, SandboxPausedError) and error.sandbox_id:
        return _fail(f"{error}: sandboxkit resume {error.sandbox_id}", INFRASTRUCTURE)
    return _fail(str(error), USAGE if isinstance(error, ConfigurationError) else INFRASTRUCTURE)


def _fail(message: str, code: int) -> int:
    complain(message)
    return code


def _flat(error: Exception) -> list[Exception]:
    if isinstance(error, ExceptionGroup):
        return [leaf for each in error.exceptions for leaf in _flat(each)]
    return [error]

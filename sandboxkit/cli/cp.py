"""`sandboxkit cp`: files and folders into and out of a sandbox."""

import argparse
import os
import posixpath
import sys

from sandboxkit import Sandbox, SandboxFileNotFoundError, Session
from sandboxkit.cli import _options
from sandboxkit.cli._text import count, safe_line
from sandboxkit.errors import ConfigurationError
from sandboxkit.types import FileType

_EPILOG = """\
As with cp -r, a folder that exists receives the source under its own name.
Out of a sandbox, links and special files are left out and named on stderr.

examples:
  sandboxkit cp solution.py ID:/workspace/
  sandboxkit cp ID:/workspace/results .
"""


def add(verbs: _options.Verbs) -> None:
    """Declare the verb."""
    parser = verbs.add_parser(
        "cp",
        help="copy files and folders in and out",
        description="Copy a file or folder between this machine and a sandbox.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    _options.provider(parser)
    parser.add_argument("source", metavar="SRC", help="a path here, or ID:/PATH in a sandbox")
    parser.add_argument("target", metavar="DST", help="the same; one of the two is in a sandbox")
    parser.set_defaults(verb=main)


def main(args: argparse.Namespace) -> int:
    """Run it."""
    source_id, source = _split(args.source)
    target_id, target = _split(args.target)
    if (source_id is None) == (target_id is None):
        raise ConfigurationError(
            "exactly one of SRC and DST is in a sandbox; write it as ID:/PATH "
            "(and a path here that contains ':' as ./PATH)"
        )
    with Session(args.provider) as session:
        if source_id is not None:
            _download(session.from_id(source_id).result(), source, target)
        elif target_id is not None:
            _upload(session.from_id(target_id).result(), source, target)
    return 0


def _split(text: str) -> tuple[str | None, str]:
    head, colon, path = text.partition(":")
    if not colon or not head or "/" in head:
        return None, text
    if not path.startswith("/"):
        raise ConfigurationError(
            f"{text!r}: the path in a sandbox is absolute, such as {head}:/workspace"
        )
    return head, path


def _upload(sandbox: Sandbox, source: str, target: str) -> None:
    if not os.path.exists(source):
        raise ConfigurationError(f"{source!r}: there is no such file here")
    name = os.path.basename(os.path.abspath(source))
    if target.endswith("/") or _is_folder(sandbox, target):
        target = posixpath.join(target, name)
    sandbox.upload(source, target).result()


def _download(sandbox: Sandbox, source: str, target: str) -> None:
    source = source.rstrip("/") or "/"
    if target.endswith("/") or os.path.isdir(target):
        target = os.path.join(target, posixpath.basename(source))
    transfer = sandbox.download(source, target).result()
    if transfer.skipped:
        shown = ", ".join(safe_line(name) for name in transfer.skipped[:5])
        more = ", ..." if len(transfer.skipped) > 5 else ""
        what = count(len(transfer.skipped), "link or special file")
        print(f"sandboxkit: left out {what}: {shown}{more}", file=sys.stderr)


def _is_folder(sandbox: Sandbox, path: str) -> bool:
    try:
        info = sandbox.stat(path).result()
    except SandboxFileNotFoundError:
        return False
    return info.type is FileType.DIRECTORY

"""`sandboxkit cp`: copy files and folders into and out of a sandbox."""

import argparse
import os
import posixpath
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager

from sandboxkit import Sandbox, SandboxFileNotFoundError
from sandboxkit._sandbox import MAX_DOWNLOAD, MAX_DOWNLOAD_FILES
from sandboxkit.cli import _find, _options, _streams
from sandboxkit.cli._progress import ProgressLine
from sandboxkit.cli._text import count, safe_line
from sandboxkit.errors import ConfigurationError
from sandboxkit.transfers import Transfer, _archive, _calls
from sandboxkit.types import FileInfo, FileType

_CHUNK = 1 << 18
_EPILOG = """\
As with cp -r, a folder that exists receives the source under its own name.
From a sandbox, links, special files and what its user may not read are not
copied but named on stderr.
A '-' instead of a local path is standard input or output.

examples:
  sandboxkit cp solution.py ID:/workspace/
  sandboxkit cp ID:/workspace/results .
  sandboxkit cp ID:/workspace/answer.json - | jq .
  git diff | sandboxkit cp - ID:/workspace/fix.patch
"""


def add(verbs: _options.Verbs) -> None:
    """Add the verb to the command line."""
    parser = verbs.add_parser(
        "cp",
        help="copy files and folders in and out",
        description="Copy a file or folder between this machine and a sandbox.",
        epilog=_EPILOG,
    )
    _options.provider(parser, _options.FOUND)
    parser.add_argument("source", metavar="SRC", help="a path here, or ID:/PATH in a sandbox")
    parser.add_argument("target", metavar="DST", help="the same; one of the two is in a sandbox")
    parser.set_defaults(verb=main)


def main(args: argparse.Namespace) -> int:
    """Run the verb."""
    source_id, source = _split(args.source)
    target_id, target = _split(args.target)
    if source_id is not None and target_id is None:
        with _find.reached(args, source_id) as sandbox:
            _download(sandbox, source, target)
    elif target_id is not None and source_id is None:
        _refuse_missing(source)
        with _find.reached(args, target_id) as sandbox, _given(source) as path:
            _upload(sandbox, path, target, name=None if source == "-" else os.path.abspath(source))
    else:
        raise ConfigurationError(
            "exactly one of SRC and DST is in a sandbox; write it as ID:/PATH "
            "(and a path here that contains ':' as ./PATH)"
        )
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


def _refuse_missing(source: str) -> None:
    if source != "-" and not os.path.exists(source):
        raise ConfigurationError(f"{source!r}: there is no such file here")


@contextmanager
def _given(source: str) -> Iterator[str]:
    """Yield the file or folder to upload; for '-', a temporary file with the standard input."""
    if source != "-":
        yield source
        return
    with tempfile.TemporaryDirectory(prefix="sandboxkit-cp-") as folder:
        path = os.path.join(folder, "input")
        with open(path, "wb") as file, ProgressLine() as progress:
            while data := os.read(0, _CHUNK):
                file.write(data)
                progress.add(len(data))
        yield path


def _upload(sandbox: Sandbox, source: str, target: str, *, name: str | None) -> None:
    if target.endswith("/") or _is_folder(sandbox, target):
        if name is None:
            raise ConfigurationError(f"{target!r} is a folder; add a file name for the input")
        target = posixpath.join(target, os.path.basename(name))
    total = os.path.getsize(source) if os.path.isfile(source) else None
    with ProgressLine(total) as progress:
        _calls.upload(sandbox._life, source, target, progress.add).result()


def _download(sandbox: Sandbox, source: str, target: str) -> None:
    source = source.rstrip("/") or "/"
    info = sandbox.stat(source).result()
    if target == "-":
        if info.type is FileType.DIRECTORY:
            raise ConfigurationError(
                f"{source!r} is a folder; for an archive of it: sandboxkit exec {sandbox.id} "
                f"tar c {source}"
            )
        with tempfile.TemporaryDirectory(prefix="sandboxkit-cp-") as folder:
            path = os.path.join(folder, "output")
            with ProgressLine(info.size) as progress:
                _fetch(sandbox, info, path, progress)
            _print(path)
        return
    if target.endswith("/") or os.path.isdir(target):
        target = os.path.join(target, posixpath.basename(source))
    total = info.size if info.type is FileType.FILE else None
    with ProgressLine(total) as progress:
        transfer = _fetch(sandbox, info, target, progress)
    if transfer.skipped:
        shown = ", ".join(safe_line(name) for name in transfer.skipped[:5])
        more = ", ..." if len(transfer.skipped) > 5 else ""
        what = count(len(transfer.skipped), "link, special or unreadable file")
        print(f"sandboxkit: skipped {what}: {shown}{more}", file=sys.stderr)


def _fetch(sandbox: Sandbox, info: FileInfo, target: str, progress: ProgressLine) -> Transfer:
    limits = _archive.DownloadLimits(MAX_DOWNLOAD, MAX_DOWNLOAD_FILES)
    return sandbox._call(
        lambda box: _archive.fetch(box, info, target, limits, progress.add)
    ).result()


def _print(path: str) -> None:
    write = _streams.writer(sys.stdout)
    with open(path, "rb") as file:
        while data := file.read(_CHUNK):
            write(data)
    write(None)


def _is_folder(sandbox: Sandbox, path: str) -> bool:
    try:
        info = sandbox.stat(path).result()
    except SandboxFileNotFoundError:
        return False
    return info.type is FileType.DIRECTORY

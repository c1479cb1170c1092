"""`sandboxkit recording`: print a recording, one line per call."""

import argparse
import json
from pathlib import Path
from typing import Any

from sandboxkit.cli import _options
from sandboxkit.cli._text import safe_line
from sandboxkit.errors import ConfigurationError

_WIDTH = 160
_EPILOG = """\
Each line has the time, the seconds that the call took, its sandbox, the call,
its arguments and how it ended. The file itself has all details, as one line of
JSON per call.

example:
  sandboxkit recording run.jsonl
"""


def add(verbs: _options.Verbs) -> None:
    """Add the verb to the command line."""
    parser = verbs.add_parser(
        "recording",
        help="show the calls of a recorded run",
        description="Print the calls of a recording, which Session(record=FILE) made, in the order in "
        "which they ended.",
        epilog=_EPILOG,
    )
    parser.add_argument("file", metavar="FILE")
    parser.set_defaults(verb=main)


def main(args: argparse.Namespace) -> int:
    """Run the verb."""
    from sandboxkit.recording import (
        lines,
    )  # tarfile and others cost time that other verbs need not pay

    if not Path(args.file).is_file():
        raise ConfigurationError(f"FILE {args.file!r} is no recording: there is no such file")
    for line in lines(args.file):
        if "call" in line:
            print(safe_line(_shown(line)))
        elif "ended" in line:
            print(safe_line(str(line["ended"])))
    return 0


# Any: a line of JSON.
def _shown(line: dict[str, Any]) -> str:
    given = dict(line["arguments"])
    what = given.pop("argv", None) or given.pop("path", None) or given.pop("spec", None) or given
    text = json.dumps(what, ensure_ascii=False)
    text = text if len(text) <= _WIDTH else f"{text[:_WIDTH]}…"
    where = line["sandbox"] or "-"
    return f"{line['at']} {line['seconds']:9.3f} s  {where}  {line['call']} {text}  {_end(line)}"


# Any: a line of JSON.
def _end(line: dict[str, Any]) -> str:
    if "error" in line:
        return f"{line['error']['class']}: {line['error']['message']}"[:_WIDTH]
    if line.get("cancelled"):
        return "cancelled"
    result = line.get("result")
    if isinstance(result, dict) and "status" in result:
        return f"status {result['status']}"
    return str(result)[:_WIDTH] if line["call"] == "create" else "ok"

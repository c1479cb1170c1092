"""`sandboxkit mcp`: serve a sandbox to a client of the Model Context Protocol (MCP)."""

import argparse
import importlib
import sys

from sandboxkit import Session
from sandboxkit.cli import _options

_EPILOG = """\
An MCP client starts this command and uses its standard input and output. The
tools are exec, read_file, write_file and list_files. The first call starts the
sandbox. It is deleted when the client disconnects or dies, and ends after
--lifetime in any case.

example, as a client's configuration:
  {"mcpServers": {"sandbox": {
    "command": "sandboxkit",
    "args": ["mcp", "-p", "docker", "--lifetime", "4h"]}}}
"""


def add(verbs: _options.Verbs) -> None:
    """Add the verb to the command line."""
    parser = verbs.add_parser(
        "mcp",
        help="give an MCP client a sandbox",
        description="Serve the Model Context Protocol: commands and files in one sandbox.",
        epilog=_EPILOG,
    )
    _options.provider(parser)
    _options.sandbox(parser)
    parser.set_defaults(verb=main)


def main(args: argparse.Namespace) -> int:
    """Run the verb."""
    with Session(args.provider, **_options.spec(args)) as session:
        # Imported by name and lazily: the command line must work without the integrations.
        server = importlib.import_module("sandboxkit.integrations.mcp")
        if sys.stdin.isatty():
            print("waiting for an MCP client on standard input; Ctrl-C ends this", file=sys.stderr)
        code: int = server.serve(session)
    return code

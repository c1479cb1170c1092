"""The results of a terminal's calls."""

import re
from dataclasses import dataclass

from sandboxkit._calls._foreign_names import foreign_names
from sandboxkit.terminal._plain import plain


@foreign_names
@dataclass(frozen=True, slots=True)
class TerminalResult:
    """A terminal's output since its previous result, and the state of its command."""

    output_bytes: bytes
    """The exact bytes: standard output, standard error and the shell's own messages."""
    returncode: int | None
    """The command's status, None while it runs; 128 + n when signal n ended it."""
    truncated: bool = False
    """Whether the output exceeded its limit, so that its middle was dropped."""
    ended: bool = False
    """Whether the shell itself has ended: by `exit`, by `set -e`, or because it was killed."""

    @property
    def running(self) -> bool:
        """Whether the command was still running when the deadline passed."""
        return self.returncode is None

    @property
    def output(self) -> str:
        """The output decoded as UTF-8; undecodable bytes become U+FFFD."""
        return self.output_bytes.decode(errors="replace")

    @property
    def plain(self) -> str:
        """The output without colours, cursor movements and overwritten text."""
        return plain(self.output)


@dataclass(frozen=True, slots=True)
class Expected:
    """The result of `Terminal.expect`."""

    output: str
    """The unread output up to the end of the match, or all of it if nothing matched."""
    match: re.Match[str] | None
    """The match; None if the deadline passed or the shell ended first. The output then stays unread."""

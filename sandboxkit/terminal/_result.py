"""What a terminal's calls return."""

import re
from dataclasses import dataclass

from sandboxkit.terminal._plain import plain


@dataclass(frozen=True, slots=True)
class TerminalResult:
    """What a terminal printed since the result before this one, and how its command stands."""

    output_bytes: bytes
    """Exactly what came: standard output and standard error, and what the shell says itself."""
    returncode: int | None
    """The command's status, None while it runs; 128 + n when signal n ended it."""
    truncated: bool = False
    """Whether the middle of the output was dropped because it was over the output limit."""
    ended: bool = False
    """Whether the shell itself is gone: `exit`, `set -e`, or somebody killed it."""

    @property
    def running(self) -> bool:
        """Whether the deadline passed first: the command goes on."""
        return self.returncode is None

    @property
    def output(self) -> str:
        """The output decoded as UTF-8, with U+FFFD for what is not."""
        return self.output_bytes.decode(errors="replace")

    @property
    def plain(self) -> str:
        """The output without colours, cursor movements and lines that were written over."""
        return plain(self.output)


@dataclass(frozen=True, slots=True)
class Expected:
    """What `Terminal.expect` found."""

    output: str
    """What was printed up to the end of the match; all that there is where nothing matched."""
    match: re.Match[str] | None
    """None where the deadline passed, or the shell ended, first. The output is then still unread."""

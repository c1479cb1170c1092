"""Text for a terminal: untrusted text without control characters, durations, counts and tags."""

import codecs
import sys
import unicodedata
from collections.abc import Mapping, Sequence

from sandboxkit import _tags

# Joiners are format characters too, but scripts and emoji need them, and they are harmless.
_ALLOWED = "\u200c\u200d"
_DANGEROUS = ("Cc", "Cf", "Cs", "Zl", "Zp")


def safe_line(text: str) -> str:
    """Return untrusted text as one line that cannot control the terminal or reorder its display.

    Control characters become their pictures (ESC is ␛); bidirectional and other invisible
    format characters become U+FFFD.
    """
    return text if text.isprintable() else _neutral(text)


def safe_text(text: str) -> str:
    """Like `safe_line`, but keeps line feeds and tabs."""
    return _neutral(text, kept="\n\t")


def complain(error: object) -> None:
    """Print an error, or its message, to stderr."""
    print(f"sandboxkit: error: {safe_line(str(error))}", file=sys.stderr)


def aligned(rows: Sequence[Sequence[str]], left: int, gap: str) -> str:
    """Return rows as lines with aligned columns, the first `left` of them to the left."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines: list[str] = []
    for row in rows:
        cells = [
            cell.ljust(width) if number < left else cell.rjust(width)
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append(gap.join(cells).rstrip())
    return "\n".join(lines)


class TerminalSanitizer:
    """Converts a command's raw output, chunk by chunk, into text that is safe on a terminal."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._return = ""

    def feed(self, chunk: bytes, *, final: bool = False) -> str:
        """Decode a chunk and replace its control characters; a CR LF may span two chunks."""
        text = self._return + self._decoder.decode(chunk, final)
        self._return = "\r" if text.endswith("\r") and not final else ""
        text = text.removesuffix("\r") if self._return else text
        return safe_text(text.replace("\r\n", "\n"))


def duration(seconds: float) -> str:
    """Format a duration with at most two units, such as 3h 12m."""
    left = max(0, round(seconds))
    parts: list[str] = []
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60), ("s", 1)):
        count, left = divmod(left, size)
        if count or (parts and count) or (unit == "s" and not parts):
            parts.append(f"{count}{unit}")
    return " ".join(parts[:2])


def count(number: int, noun: str) -> str:
    """Return a number with its noun, in the plural if needed."""
    return (
        f"{number} {noun}"
        if number == 1
        else f"{number} {noun}{'es' if noun.endswith('x') else 's'}"
    )


def tag_line(tags: Mapping[str, str]) -> str:
    """Return a sandbox's tags as a user writes them, without the reserved ones."""
    pairs = sorted(_tags.public(tags).items())
    return " ".join(f"{key}:{value}" if value else key for key, value in pairs)


def _neutral(text: str, kept: str = "") -> str:
    kept += _ALLOWED
    # Translate with a table of the distinct characters, which are few even in a long text.
    return text.translate(
        {
            ord(char): _replaced(char)
            for char in set(text)
            if not char.isprintable() and char not in kept
        }
    )


def _replaced(char: str) -> str:
    code = ord(char)
    if code < 0x20:
        return chr(0x2400 + code)
    if code == 0x7F:
        return "\u2421"
    return "\ufffd" if unicodedata.category(char) in _DANGEROUS else char

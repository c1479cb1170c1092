"""Conversion of terminal output to the text that a terminal would show."""

import re

# Each alternative ends at the next escape at the latest, so that the search is linear.
_SEQUENCE = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]?"  # CSI: colours, the cursor, modes such as the alternate screen
    r"|\x1b[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)?"  # OSC, DCS and others with a text: titles, links
    r"|\x1b[ -/]*[0-~]?"
)
_UNSEEN = re.compile(r"[\x00-\x07\x0b\x0c\x0e-\x1f\x7f]")


def plain(text: str) -> str:
    """Return `text` without escape sequences, with overwriting by `\\r` and `\\b` applied.

    The layout of full-screen programs is not reproduced.
    """
    text = _SEQUENCE.sub("", text)
    if "\r" in text or "\b" in text:
        text = "\n".join(map(_settled, text.split("\n")))
    return _UNSEEN.sub("", text)


def _settled(line: str) -> str:
    line = line.rstrip("\r")
    if "\r" not in line and "\b" not in line:
        return line
    cells: list[str] = []
    at = 0
    for character in line:
        if character == "\r":
            at = 0
        elif character == "\b":
            at = max(0, at - 1)
        else:
            cells[at : at + 1] = [character]
            at += 1
    return "".join(cells)

"""Lines of a file as `grep -n` and `sed` count them, for editors: only a newline ends one, perhaps after a CR."""

import io


def lines_of(text: str) -> list[str]:
    r"""Return the lines of a text, each with its newline; the last one may lack it.

    `str.splitlines` also splits at form feed, CR, U+0085, U+2028 and others, which a line of a program may contain.
    """
    return list(io.StringIO(text, newline="\n"))

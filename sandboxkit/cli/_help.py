"""Help texts that fit the terminal and break lines only between words."""

import argparse
import re
import textwrap
from typing import NoReturn

from sandboxkit._calls._foreign_names import nearest

_SHORT = 40
"""Length of a list of choices that an error shows whole."""


class Formatter(argparse.HelpFormatter):
    """Keeps existing line ends and never breaks a line at a hyphen, as in `--older-than`."""

    def _split_lines(self, text: str, width: int) -> list[str]:
        return _wrapped(" ".join(text.split()), width)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        lines = text.splitlines() if "\n" in text else _wrapped(text, width - len(indent))
        return "\n".join(indent + line for line in lines)


class Parser(argparse.ArgumentParser):
    """Suggests a verb for one that is not known."""

    def error(self, message: str) -> NoReturn:
        """Exit with the message, its usage and the nearest name."""
        unknown = re.match(r"argument \w+: invalid choice: '(.*?)' \(choose from (.*)\)", message)
        if unknown is not None and len(unknown[2]) > _SHORT:
            names = re.findall(r"[\w-]+", unknown[2])
            message = f"there is no {unknown[1]!r}{nearest(unknown[1], names)}; --help lists all"
        super().error(message)


def apply(parser: argparse.ArgumentParser) -> None:
    """Use the formatter for a parser and the parsers of its verbs."""
    parser.formatter_class = Formatter
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for each in action.choices.values():
                apply(each)


def _wrapped(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False)

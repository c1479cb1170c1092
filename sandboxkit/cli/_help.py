"""Help that fits its terminal, and breaks its lines between words alone."""

import argparse
import textwrap


class Formatter(argparse.HelpFormatter):
    """Keeps the line ends of a text that has some; breaks neither `read-only` nor `--older-than`."""

    def _split_lines(self, text: str, width: int) -> list[str]:
        return _wrapped(" ".join(text.split()), width)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        lines = text.splitlines() if "\n" in text else _wrapped(text, width - len(indent))
        return "\n".join(indent + line for line in lines)


def apply(parser: argparse.ArgumentParser) -> None:
    """Let a parser, and those of its verbs, write such help."""
    parser.formatter_class = Formatter
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for each in action.choices.values():
                apply(each)


def _wrapped(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False)

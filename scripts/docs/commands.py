"""Generates the command line's reference from its argument parser."""

import argparse
from collections.abc import Iterator

from sandboxkit.cli import build_parser

OPENING = """# Verbs and options

Generated from the command itself: `sandboxkit VERB --help` says the same.
[The command line](../command-line.md) shows how it is used.

"""


def document() -> str:
    """Return the whole page as Markdown."""
    parser = build_parser()
    verbs = "".join(_verb(["sandboxkit", *names], each) for names, each in walk(parser))
    return f"{OPENING}{_body(['sandboxkit'], parser)}{verbs}"


def walk(
    parser: argparse.ArgumentParser, names: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], argparse.ArgumentParser]]:
    """Yield each verb's names with its parser, followed by its own verbs."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, each in action.choices.items():
                yield (*names, name), each
                yield from walk(each, (*names, name))


def _verb(names: list[str], parser: argparse.ArgumentParser) -> str:
    return f"{'#' * len(names)} {' '.join(names)}\n\n{_body(names, parser)}"


def _body(names: list[str], parser: argparse.ArgumentParser) -> str:
    # argparse wraps usage at the terminal's width; the page has it on one line.
    usage = " ".join(parser.format_usage().removeprefix("usage: ").split())
    parts = [f"{_text(parser.description or '')}\n\n```text\n{usage}\n```\n\n"]
    rows = [_row(action) for action in parser._actions if _is_listed(action)]
    if rows:
        parts.append("| argument | meaning |\n| --- | --- |\n" + "".join(rows) + "\n")
    verbs = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    for action in verbs:
        parts.append("| verb | what it does |\n| --- | --- |\n")
        for choice in action._choices_actions:
            anchor = "-".join([*names, choice.dest])
            parts.append(f"| [`{choice.dest}`](#{anchor}) | {_text(choice.help or '')} |\n")
        parts.append("\n")
    if parser.epilog:
        parts.append(f"```text\n{parser.epilog.strip()}\n```\n\n")
    return "".join(parts)


def _is_listed(action: argparse.Action) -> bool:
    hidden = action.help == argparse.SUPPRESS or action.dest == "help"
    return not hidden and not isinstance(action, argparse._SubParsersAction)


def _row(action: argparse.Action) -> str:
    value = action.metavar if isinstance(action.metavar, str) else action.dest.upper()
    if action.choices is not None and not isinstance(action.metavar, str):
        value = "{" + ",".join(map(str, action.choices)) + "}"
    names = [
        f"`{name}`" if action.nargs == 0 else f"`{name} {value}`" for name in action.option_strings
    ]
    text = _text(action.help or "")
    shown = "default" in text or action.default in (None, False, [], argparse.SUPPRESS)
    if action.option_strings and action.nargs != 0 and not shown:
        text = f"{text} (default: `{action.default}`)".strip()
    return f"| {', '.join(names) or f'`{value}`'} | {text} |\n"


def _text(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*")

"""Command-line options that several verbs share, and the parsing of their values."""

import argparse
import os
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, cast, get_args, get_origin

from sandboxkit import _registry
from sandboxkit.datasets import Dataset, Volume
from sandboxkit.egress import Egress
from sandboxkit.errors import ConfigurationError
from sandboxkit.options import ALL_OPTIONS, Option, SpecOptions

if TYPE_CHECKING:
    # The return type of add_subparsers() is private in argparse.
    Verbs = argparse._SubParsersAction[argparse.ArgumentParser]
else:
    Verbs = object


def port(text: str) -> int:
    """Return the number of a TCP port; raise what argparse reports as the option's error."""
    if not text.isdecimal() or not int(text) < 1 << 16:
        raise argparse.ArgumentTypeError(f"{text!r} is no port: use a number from 0 to 65535")
    return int(text)


_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_REPEATED = {
    "K=V": "K alone copies yours",
    "K": "copies yours",
    "TAG": "repeatable",
    "DIR=DATA": "DATA is a folder of yours, sha256:... or volume:NAME",
}
"""Notes that help texts add to options that can be given several times, by the names of their values."""


FOUND = "backend: local, docker, ... (default: found by ID)"
"""Help of --provider for a verb that takes a sandbox's id, because the id determines the provider."""
_CHOSEN = "backend: local, docker, ... (default: $SANDBOXKIT_PROVIDER, else local on Linux)"


def provider(parser: argparse.ArgumentParser, text: str = _CHOSEN) -> None:
    """Add --provider, without a default, so that a --provider before the verb keeps its value."""
    parser.add_argument("-p", "--provider", metavar="NAME", default=argparse.SUPPRESS, help=text)


def sandbox(parser: argparse.ArgumentParser) -> None:
    """Add the flags of the options that describe a new sandbox."""
    group = parser.add_argument_group("the sandbox")
    for option in ALL_OPTIONS:
        if option.flag:
            names, metavar = spelling(option)
            group.add_argument(*names, dest=option.name, **_keywords(option, metavar))
    group.add_argument(
        "--allow",
        metavar="NAME",
        action="append",
        default=[],
        help="let it reach only this name, such as pypi.org or '*.github.com'; repeatable",
    )
    group.add_argument(
        "--native",
        action="store_true",
        help="with --allow: use the vendor's own list of servers in place of this process's proxy",
    )


def spelling(option: Option) -> tuple[list[str], str]:
    """Return the names of an option's flag, the long one last, and its value's placeholder, or ""."""
    words = option.flag.replace(",", "").split()
    names = [word for word in words if word.startswith("-")]
    return names, "".join(words[len(names) :])


# Any: keywords of add_argument, which have many types.
def _keywords(option: Option, metavar: str) -> dict[str, Any]:
    kinds = (option.type, *get_args(option.type))
    if literals := [get_args(kind) for kind in kinds if get_origin(kind) is Literal]:
        keywords: dict[str, Any] = {"choices": literals[0]}
    elif metavar in _REPEATED:
        keywords = {"action": "append", "metavar": metavar}
    elif metavar == "TIME":
        keywords = {"type": seconds, "metavar": metavar}
    else:
        number = next((kind for kind in (int, float) if kind in kinds), str)
        keywords = {"type": number, "metavar": metavar}
    return {**keywords, "help": _help(option, metavar)}


def _help(option: Option, metavar: str) -> str:
    text = option.meaning.partition(". ")[0].removesuffix(".")
    text = text[:1].lower() + text[1:] if text[1:2].islower() else text
    note = {**_REPEATED, "TIME": "a time such as 15m works too"}.get(metavar)
    text = f"{text}; {note}" if note else text
    if not option.default:
        return text
    default = f"{option.default / 3600:g}h" if metavar == "TIME" else option.default
    return f"{text} (default: {default})"


def spec(args: argparse.Namespace) -> SpecOptions:
    """Return the sandbox options of the command line as keywords for a Session.

    Raises ConfigurationError for invalid values.
    """
    given: Any = {}  # Any: a SpecOptions whose keys are no literals
    for option in ALL_OPTIONS:
        value = getattr(args, option.name) if option.flag else None
        if value is not None:
            pairs = get_origin(option.type) is Mapping
            parse = _mount if option.name == "mounts" else variable
            given[option.name] = dict(map(parse, value)) if pairs else value
    if args.allow:
        if args.network is not None:
            raise ConfigurationError(f"--network {args.network} does not go with --allow; give one")
        given["network"] = Egress(allow=args.allow, native=args.native)
    elif args.native:
        raise ConfigurationError("--native needs --allow NAME, the servers for the vendor's list")
    return cast(SpecOptions, given)


def command(parser: argparse.ArgumentParser) -> None:
    """Add the options of a command: its input, its terminal and its time limit."""
    parser.add_argument("-i", "--interactive", action="store_true", help="pass standard input on")
    parser.add_argument("-t", "--tty", action="store_true", help="run the command on a terminal")
    parser.add_argument(
        "--timeout",
        type=seconds,
        metavar="TIME",
        help="kill the command after TIME, such as 10 or 5m",
    )


def argv(rest: list[str], usage: str) -> list[str]:
    """Return the command after the options, without a leading '--'.

    Raises ConfigurationError, which shows `usage`, if an option follows instead of a command.
    """
    if rest[:1] == ["--"]:
        return rest[1:]
    if rest and rest[0].startswith("-"):
        raise ConfigurationError(f"option {rest[0]!r} must come earlier; write: {usage}")
    return rest


def tags(parser: argparse.ArgumentParser) -> None:
    """Add --tag, which selects existing sandboxes."""
    parser.add_argument(
        "--tag",
        metavar="K:V",
        action="append",
        default=[],
        help="only with this tag; repeatable, all must match",
    )


def number(text: str) -> int:
    """Parse a whole number of at least 0."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0 on, such as 20")
    return int(text)


def seconds(text: str) -> float:
    """Parse a duration such as 90, 90s, 15m, 1h or 2d into seconds."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd]?)", text)
    if match is None or float(match[1]) == 0:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a time; use a number and s, m, h or d, such as 15m"
        )
    return float(match[1]) * _UNITS[match[2]]


def provider_name(args: argparse.Namespace) -> str:
    """Return the requested provider, or the default one."""
    return args.provider or _registry.default_name()


def _mount(text: str) -> tuple[str, Dataset | Volume]:
    point, _, data = text.partition("=")
    if not point or not data:
        raise ConfigurationError(
            f"--mount {text!r} is not valid; write --mount /data=./folder or /data=volume:NAME"
        )
    if data.startswith("volume:"):
        return point, Volume(data.removeprefix("volume:"))
    return point, Dataset(digest=data) if data.startswith("sha256:") else Dataset(data)


def variable(text: str) -> tuple[str, str]:
    """Parse NAME=VALUE; NAME alone takes the value that it has here. Raises ConfigurationError."""
    name, equals, value = text.partition("=")
    if equals:
        return name, value
    if name not in os.environ:
        raise ConfigurationError(
            f"variable {name!r} is not set here; write {name}=VALUE or export it first"
        )
    return name, os.environ[name]

"""Command-line options that several verbs share, and the parsing of their values."""

import argparse
import os
import re
from typing import TYPE_CHECKING, TypedDict

from sandboxkit import _registry
from sandboxkit._spec import SpecOptions
from sandboxkit.errors import ConfigurationError

if TYPE_CHECKING:
    # The return type of add_subparsers() is private in argparse.
    Verbs = argparse._SubParsersAction[argparse.ArgumentParser]
else:
    Verbs = object

_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


class CommandOptions(TypedDict):
    """Keywords for `Sandbox.exec` that come from the command line."""

    cwd: str | None
    user: str | None
    env: dict[str, str]


def provider(parser: argparse.ArgumentParser, *, found: bool = False) -> None:
    """Add --provider, without a default, so that a --provider before the verb keeps its value.

    Pass `found` for a verb that takes an id, from which the provider is found.
    """
    default = "found by ID" if found else "$SANDBOXKIT_PROVIDER, else local on Linux"
    parser.add_argument(
        "-p",
        "--provider",
        metavar="NAME",
        default=argparse.SUPPRESS,
        help=f"backend: local, docker, ... (default: {default})",
    )


def sandbox(parser: argparse.ArgumentParser) -> None:
    """Add the options that describe a new sandbox."""
    group = parser.add_argument_group("the sandbox")
    group.add_argument("--image", help="image reference; on local a root folder or OCI archive")
    group.add_argument(
        "-e",
        "--env",
        metavar="K=V",
        action="append",
        default=[],
        help="set a variable; K alone copies yours",
    )
    group.add_argument(
        "--secret",
        metavar="K",
        action="append",
        default=[],
        help="copy your variable K; its value is never shown",
    )
    group.add_argument(
        "--tag", metavar="T", action="append", default=[], help="label such as run:42; repeatable"
    )
    group.add_argument(
        "-w", "--workdir", metavar="DIR", help="where commands start (default: /workspace)"
    )
    group.add_argument("-u", "--user", help="user name or uid")
    group.add_argument("--network", choices=("none", "internet"), help="default: none")
    group.add_argument(
        "--profile", choices=("standard", "strict"), help="strict: read-only root, non-root user"
    )
    group.add_argument("--cpus", type=float, metavar="N")
    group.add_argument("--memory-mb", type=int, metavar="N")
    group.add_argument("--disk-mb", type=int, metavar="N")
    group.add_argument("--pids", type=int, metavar="N", help="limit on processes and threads")
    group.add_argument("--gpu", metavar="KIND")
    group.add_argument(
        "--lifetime", type=seconds, metavar="TIME", help="end the sandbox after TIME (default: 1h)"
    )
    group.add_argument(
        "--start-timeout", type=seconds, metavar="TIME", help="fail if it has not started by then"
    )


def spec(args: argparse.Namespace) -> SpecOptions:
    """Return the given sandbox options as keywords for a Session."""
    options: SpecOptions = {"tags": args.tag, "env": dict(map(_variable, args.env))}
    if args.secret:
        options["secrets"] = dict(map(_variable, args.secret))
    for name in (
        "image",
        "workdir",
        "user",
        "network",
        "profile",
        "cpus",
        "memory_mb",
        "disk_mb",
        "pids",
        "gpu",
        "lifetime",
        "start_timeout",
    ):
        if (value := getattr(args, name)) is not None:
            options[name] = value
    return options


def command(parser: argparse.ArgumentParser) -> None:
    """Add the options for one command in an existing sandbox."""
    parser.add_argument(
        "-e",
        "--env",
        metavar="K=V",
        action="append",
        default=[],
        help="set a variable; K alone copies yours",
    )
    parser.add_argument("-w", "--workdir", metavar="DIR", help="directory to start in")
    parser.add_argument("-u", "--user", help="user name or uid")


def command_keywords(args: argparse.Namespace) -> CommandOptions:
    """Return the command options as keywords for `Sandbox.exec`."""
    return {"cwd": args.workdir, "user": args.user, "env": dict(map(_variable, args.env))}


def argv(rest: list[str], usage: str) -> list[str]:
    """Return the command after the options, without a leading '--'."""
    if rest[:1] == ["--"]:
        return rest[1:]
    if rest and rest[0].startswith("-"):
        raise ConfigurationError(f"option {rest[0]!r} comes too late; write: {usage}")
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


def _variable(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if equals:
        return name, value
    if name not in os.environ:
        raise ConfigurationError(
            f"variable {name!r} is not set here; write {name}=VALUE or export it first"
        )
    return name, os.environ[name]

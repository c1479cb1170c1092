"""Command-line options that several verbs share, and how their values are read."""

import argparse
import os
import re
from typing import TYPE_CHECKING, TypedDict

from sandboxkit import _registry
from sandboxkit._spec import SpecOptions
from sandboxkit.errors import ConfigurationError

if TYPE_CHECKING:
    # Private in argparse, but what its add_subparsers() returns.
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
    """Add --provider; without a default here, so that the one before the verb stands.

    With `found` it is for a verb that takes an id, by which its provider is found.
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


def spec(args: argparse.Namespace) -> SpecOptions:
    """The sandbox options that were given, as keywords for a Session."""
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
    """The command options as keywords for `Sandbox.exec`."""
    return {"cwd": args.workdir, "user": args.user, "env": dict(map(_variable, args.env))}


def argv(rest: list[str], usage: str) -> list[str]:
    """The command after the options, with or without a '--' before it."""
    if rest[:1] == ["--"]:
        return rest[1:]
    if rest and rest[0].startswith("-"):
        raise ConfigurationError(f"option {rest[0]!r} comes too late; write: {usage}")
    return rest


def tags(parser: argparse.ArgumentParser) -> None:
    """Add --tag, for sandboxes that there are."""
    parser.add_argument(
        "--tag",
        metavar="K:V",
        action="append",
        default=[],
        help="only with this tag; repeatable, all must match",
    )


def number(text: str) -> int:
    """Read a number that may be 0."""
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0 on, such as 20")
    return int(text)


def seconds(text: str) -> float:
    """Read a length of time: 90, 90s, 15m, 1h or 2d."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd]?)", text)
    if match is None or float(match[1]) == 0:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a time; use a number and s, m, h or d, such as 15m"
        )
    return float(match[1]) * _UNITS[match[2]]


def provider_name(args: argparse.Namespace) -> str:
    """The provider that was asked for, or the default one."""
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

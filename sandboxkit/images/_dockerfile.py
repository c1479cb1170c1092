"""Reads a Dockerfile of the instructions that a recipe has: FROM, WORKDIR, COPY and RUN."""

import contextlib
import json
import os
import posixpath
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

from sandboxkit.datasets import Folder
from sandboxkit.errors import ConfigurationError
from sandboxkit.images._names import RegistryImage
from sandboxkit.images._steps import CopyStep, ImageStep, RunStep

_KNOWN = ("FROM", "WORKDIR", "COPY", "RUN")


def parse(path: str, timeout: float) -> tuple[str | None, tuple[ImageStep, ...]]:
    """Return the base, None for "default", and the steps of a Dockerfile, whose folder is the context.

    Raises ConfigurationError, with file and line, for any other instruction and for options.
    """
    file = Path(path)
    context = Folder(file.parent, f"the Dockerfile {path!r}")
    if (text := context.text(file.name)) is None:
        raise ConfigurationError(f"the Dockerfile {path!r} cannot be read: there is none")
    if context.find(".dockerignore") is not None:
        raise context.refusal(b".dockerignore", "is not supported: COPY what is needed by its name")
    if unprintable := re.search(r"[\x00-\x08\x0e-\x1f\x7f-\x84\x86-\x9f]", text):
        raise ConfigurationError(
            f"the Dockerfile {path!r} has the character {unprintable[0]!r}; remove it"
        )
    base, folder, steps = "", "/", list[ImageStep]()
    for line, instruction, rest in _instructions(text):
        where = f"{path}, line {line}: {instruction}"
        if instruction not in _KNOWN:
            raise ConfigurationError(
                f"{where} is not supported; the instructions are {', '.join(_KNOWN)}. Give variables, user "
                "and command to the session (env=, user=) or to exec()"
            )
        if rest.startswith("--") or not rest:
            raise ConfigurationError(f"{where} {rest}: it takes no options, and needs arguments")
        if (instruction == "FROM") is bool(base):
            raise ConfigurationError(f"{where}: the file needs one FROM, as its first instruction")
        if instruction == "FROM":
            if len(rest.split()) != 1:
                raise ConfigurationError(f"{where} {rest}: use one image without AS")
            base = rest if rest == "default" else RegistryImage(rest, where)
        elif instruction == "WORKDIR":
            names = _names(where, rest)
            if len(names) != 1:
                raise ConfigurationError(f"{where} {rest}: quote a path with spaces")
            folder = posixpath.join(folder, names[0])
            steps.append(RunStep(f"mkdir -p {shlex.quote(folder)}", timeout))
        elif instruction == "COPY":
            steps += _copies(where, context, folder, _names(where, rest))
        else:
            argv = _json(rest)
            command = rest if argv is None else shlex.join(argv)
            steps.append(RunStep(command, timeout, folder))
    if not base:
        raise ConfigurationError(f"{path!r} has no FROM")
    return None if base == "default" else base, tuple(steps)


def _instructions(text: str) -> Iterator[tuple[int, str, str]]:
    """Yield each instruction with the number of its first line, its name and what follows it.

    A line that ends in a backslash goes on in the next one, whatever comments and empty lines are between.
    """
    pending, first, lines = list[str](), 0, text.split("\n")
    for number, line in enumerate([*lines, "#"], 1):
        if line.strip() and not line.lstrip().startswith("#"):
            first = first if pending else number
            pending.append(line.rstrip(" \t\r"))
            if pending[-1].endswith("\\"):
                pending[-1] = pending[-1][:-1]
                continue
        elif number <= len(lines):
            continue
        if words := "".join(pending).split(None, 1):
            yield first, words[0].upper(), words[1].strip() if len(words) > 1 else ""
        pending = []


def _json(rest: str) -> list[str] | None:
    """Return the words of a JSON list of strings; None for anything else, which is for a shell."""
    with contextlib.suppress(ValueError):
        words = json.loads(rest)
        if isinstance(words, list) and all(isinstance(word, str) for word in words):
            return words
    return None


def _names(where: str, rest: str) -> list[str]:
    """Return the paths that follow an instruction."""
    try:
        words = _json(rest) or shlex.split(rest)
    except ValueError as error:
        raise ConfigurationError(f"{where} {rest}: {error}") from error
    if any("$" in word for word in words):
        raise ConfigurationError(f"{where} {rest}: variables are not supported; write the path")
    return words


def _copies(where: str, context: Folder, folder: str, words: list[str]) -> Iterator[ImageStep]:
    *sources, target = words or [""]
    if not sources or any(set("*?[") & set(source) for source in sources):
        raise ConfigurationError(
            f"{where} {' '.join(words)}: use names without wildcards, and a target"
        )
    if len(sources) > 1 and not target.endswith("/"):
        raise ConfigurationError(f"{where}: several sources need a target that ends with '/'")
    for source in sources:
        name, into = source.lstrip("/"), posixpath.normpath(posixpath.join(folder, target))
        try:
            if (found := context.find(name)) is None:
                raise context.refusal(os.fsencode(name), "does not exist")
            local = context.path / os.fsdecode(found)
            if local.is_dir():
                context.subfolder(name)
            else:
                os.close(context.open(found))
                if target.endswith("/") or target == ".":
                    into = posixpath.join(into, posixpath.basename(name))
        except ConfigurationError as error:
            reason = f"there is no such file in {str(context.path)!r}: {error}"
            raise ConfigurationError(f"{where} {source!r}: {reason}") from error
        yield CopyStep(str(local), into)

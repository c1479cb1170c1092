"""Reads a Dockerfile of the instructions that a recipe has: FROM, WORKDIR, COPY and RUN."""

import contextlib
import json
import posixpath
import shlex
from collections.abc import Iterator
from pathlib import Path

from sandboxkit.errors import ConfigurationError
from sandboxkit.images._steps import CopyStep, ImageStep, RunStep

_KNOWN = ("FROM", "WORKDIR", "COPY", "RUN")


def parse(path: str, timeout: float) -> tuple[str | None, tuple[ImageStep, ...]]:
    """Return the base, None for "default", and the steps of a Dockerfile, whose folder is the context.

    Raises ConfigurationError, with file and line, for any other instruction and for options.
    """
    file = Path(path)
    try:
        text = file.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"the Dockerfile {path!r} cannot be read: {error}") from error
    if (ignored := file.parent / ".dockerignore").exists():
        raise ConfigurationError(f"{ignored} is not supported: COPY what is needed by its name")
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
            base = rest
            if len(rest.split()) != 1:
                raise ConfigurationError(f"{where} {rest}: use one image without AS")
        elif instruction == "WORKDIR":
            names = _names(where, rest)
            if len(names) != 1:
                raise ConfigurationError(f"{where} {rest}: quote a path with spaces")
            folder = posixpath.join(folder, names[0])
            steps.append(RunStep(f"mkdir -p {shlex.quote(folder)}", timeout))
        elif instruction == "COPY":
            steps += _copies(where, file.parent, folder, _names(where, rest))
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
    pending, first = list[str](), 0
    for number, line in enumerate([*text.splitlines(), "#"], 1):
        if line.strip() and not line.lstrip().startswith("#"):
            first = first if pending else number
            pending.append(line.rstrip())
            if pending[-1].endswith("\\"):
                pending[-1] = pending[-1][:-1]
                continue
        elif number <= len(text.splitlines()):
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


def _copies(where: str, context: Path, folder: str, words: list[str]) -> Iterator[ImageStep]:
    *sources, target = words or [""]
    if not sources or any(set("*?[") & set(source) for source in sources):
        raise ConfigurationError(
            f"{where} {' '.join(words)}: use names without wildcards, and a target"
        )
    if len(sources) > 1 and not target.endswith("/"):
        raise ConfigurationError(f"{where}: several sources need a target that ends with '/'")
    for source in sources:
        local = context / source.lstrip("/")
        if not local.resolve().is_relative_to(context.resolve()) or not local.exists():
            raise ConfigurationError(f"{where} {source}: there is no such file in {str(context)!r}")
        into = posixpath.normpath(posixpath.join(folder, target))
        is_file_in = local.is_file() and (target.endswith("/") or target == ".")
        yield CopyStep(str(local), posixpath.join(into, local.name) if is_file_in else into)

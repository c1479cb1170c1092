"""Reads a Dockerfile of the instructions that a recipe has: FROM, WORKDIR, COPY and RUN."""

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
    base, folder, steps = "", "", list[ImageStep]()
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
            folder = posixpath.join(folder or "/", rest)
            steps.append(RunStep(f"mkdir -p {shlex.quote(folder)}", timeout))
        elif instruction == "COPY":
            steps += _copies(where, file.parent, folder, _words(where, rest))
        else:
            command = shlex.join(_words(where, rest)) if rest.startswith("[") else rest
            steps.append(
                RunStep(f"cd {shlex.quote(folder)}\n{command}" if folder else command, timeout)
            )
    if not base:
        raise ConfigurationError(f"{path!r} has no FROM")
    return None if base == "default" else base, tuple(steps)


def _instructions(text: str) -> Iterator[tuple[int, str, str]]:
    """Yield each instruction with the number of its first line, its name and what follows it."""
    joined, first = "", 0
    for number, line in enumerate([*text.splitlines(), ""], 1):
        if line.lstrip().startswith("#") or (joined and not line.strip() and number <= first):
            continue
        joined, first = joined + line, first if joined else number
        if joined.endswith("\\"):
            joined = joined[:-1]
        elif joined.strip():
            name, _, rest = joined.strip().partition(" ")
            yield first, name.upper(), rest.strip()
            joined = ""


def _words(where: str, rest: str) -> list[str]:
    """Return the words of an instruction, which may be a JSON list."""
    try:
        words = json.loads(rest) if rest.startswith("[") else shlex.split(rest)
    except ValueError as error:
        raise ConfigurationError(f"{where} {rest}: {error}") from error
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        raise ConfigurationError(f"{where} {rest}: use a list of strings")
    return words


def _copies(where: str, context: Path, folder: str, words: list[str]) -> Iterator[ImageStep]:
    *sources, target = words
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
        into = posixpath.join(folder or "/", target)
        is_file_in = local.is_file() and (target.endswith("/") or target == ".")
        yield CopyStep(str(local), posixpath.join(into, local.name) if is_file_in else into)

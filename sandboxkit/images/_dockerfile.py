"""Reads of a Dockerfile what must be known before a builder gets it: instructions, bases, working folder."""

import contextlib
import hashlib
import json
import posixpath
import re
import shlex
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from sandboxkit.datasets import Folder
from sandboxkit.errors import ConfigurationError
from sandboxkit.images._names import RegistryImage, qualified
from sandboxkit.types import Dockerfile, Instruction

_NOTES = {
    "CMD": "it is not run: give commands to exec()",
    "ENTRYPOINT": "it is not run: give commands to exec()",
    "EXPOSE": "it opens no port: a sandbox opens its own",
    "HEALTHCHECK": "it is ignored",
    "STOPSIGNAL": "it is ignored",
    "VOLUME": "it is an ordinary folder",
}
_UNBUILT = {"", "ARG", "FROM", "LABEL", "MAINTAINER", "WORKDIR", *_NOTES} - {"VOLUME"}
"""Instructions beside which a base needs no build."""
_KNOWN = {"ADD", "COPY", "ENV", "ONBUILD", "RUN", "SHELL", "USER", "VOLUME", *_UNBUILT}
_DIRECTIVE = r"(?i)(?:#.*\n)*#\s*{}\s*=\s*{}"
_BACKTICK = re.compile(_DIRECTIVE.format("escape", "`"))
_FRONTEND = re.compile(_DIRECTIVE.format("syntax", r"(?!docker/dockerfile[:@\s])"))
_FLAGS = re.compile(r"(?i)(?:ONBUILD\s+)?\w+\s+((?:--(?:\"[^\"]*\"|'[^']*'|\\.|[^\s\"'\\])+\s+)*)")
_IMAGE = re.compile(r"(?i)(?:--|[=,])from=([^\s,]+)")
_HEREDOC = re.compile(r"\d*<<(-?)([\"']?)([^\s<>\"']+)\2")
_VARIABLE = re.compile(r"\$(?:(\w+)|\{(\w+)(?::-([^}]*))?\})")


def read(
    folder: str,
    name: str = "Dockerfile",
    target: str | None = None,
    args: Mapping[str, str] | None = None,
    secrets: tuple[str, ...] = (),
) -> Dockerfile:
    """Return the Dockerfile `name` of a folder, its context. Nothing outside of the folder is read.

    Raises ConfigurationError, with file and line, for what is no instruction, and for a base that is no image of
    a registry.
    """
    path, given = str(Path(folder, name)), dict(args or {})
    text = Folder(folder, f"the Dockerfile {path!r}").text(name)
    if text is None:
        raise ConfigurationError(f"the Dockerfile {path!r} cannot be read: there is none")
    if _FRONTEND.match(text):
        raise ConfigurationError(f"{path!r} has a syntax= that is not docker/dockerfile")
    lines, stages, found = text.split("\n"), _Stages(path, given), list[Instruction]()
    for each, last in _instructions(path, text):
        if (new := stages.follow(each)) != each.text:
            lines[each.line - 1 : last] = [new, *[""] * (last - each.line)]
        found.append(replace(each, text=new))
    if not stages.made:
        raise ConfigurationError(f"{path!r} has no FROM")
    stage = stages.named(target or "") or stages.made[-1]
    return Dockerfile(
        path=path,
        folder=folder,
        text="\n".join(lines),
        target=target,
        args=tuple(given.items()),
        secrets=secrets,
        instructions=tuple(found),
        notes=tuple(stages.notes),
        base=stage.base,
        workdir=stage.workdir,
        needs_build=any(each.name not in _UNBUILT for each in found),
    )


def digest(file: Dockerfile) -> str:
    """Return a text that two Dockerfiles share only if they, their arguments and their contexts are equal.

    Files that .dockerignore leaves out count, too. Raises ConfigurationError for devices, pipes and sockets.
    """
    total = hashlib.sha256(json.dumps((file.text, file.target, file.args)).encode())
    context = Folder(file.folder, f"the context of {file.path!r}")
    for entry in context.entries():
        content = b""
        if stat.S_ISLNK(entry.mode):
            content = context.link(entry.name)
        elif stat.S_ISREG(entry.mode):
            with open(context.open(entry.name), "rb") as opened, context.reading(entry.name):
                content = hashlib.file_digest(opened, "sha256").digest()
        total.update(b"%b\0%o %d %b" % (entry.name, entry.mode, len(content), content))
    return f"FROM {total.hexdigest()}"


@dataclass(slots=True)
class _Stage:
    name: str
    base: str
    workdir: str = ""
    values: dict[str, str] = field(default_factory=dict)


class _Stages:
    """The stages of a Dockerfile, with the variables and the working folder that each has so far."""

    def __init__(self, path: str, args: Mapping[str, str]) -> None:
        self.made, self.notes = list[_Stage](), list[str]()
        self._path, self._args, self._outer = path, args, dict[str, str]()

    def named(self, name: str) -> _Stage | None:
        """Return the last stage of a name."""
        return next((each for each in self.made[::-1] if each.name == name.lower() != ""), None)

    def follow(self, each: Instruction) -> str:
        """Take the next instruction; return the text that a builder gets in its place.

        Images have the names that were checked, and the names of their registries, which buildah needs.
        """
        where, rest = f"{self._path}, line {each.line}: {each.name}", each.text.partition(" ")[2]
        if each.name not in _KNOWN:
            raise ConfigurationError(
                f"{self._path}, line {each.line}: {each.name[:50]!a} is no instruction"
            )
        if each.name == "FROM":
            return self._begin(where, rest)
        if each.name == "ARG":
            self._declare(_pairs(rest))
        elif not self.made:
            raise ConfigurationError(f"{where}: the first instruction is FROM")
        elif each.name == "ENV":
            self._set(_pairs(rest))
        elif each.name == "WORKDIR":
            stage = self.made[-1]
            folder = _expanded(rest.strip("\"'"), stage.values)
            stage.workdir = posixpath.normpath(posixpath.join(stage.workdir or "/", folder))
        if each.name in _NOTES:
            self.notes.append(f"{where} {rest}: {_NOTES[each.name]}")
        if each.name in ("HEALTHCHECK", "STOPSIGNAL"):
            return ""
        if each.name == "VOLUME":
            return f"RUN mkdir -p {_words(rest)}"
        text = each.text
        for image in _IMAGE.findall(each.flags):
            if not image.isdecimal() and self.named(image) is None:
                text = text.replace(f"from={image}", f"from={qualified(image, where)}")
        return text

    def _begin(self, where: str, rest: str) -> str:
        words = [each for each in rest.split() if not each.startswith("--")]
        options = [each for each in rest.split() if each.startswith("--")]
        if len(words) not in (1, 3) or [each.upper() for each in words[1:2]] not in ([], ["AS"]):
            raise ConfigurationError(f"{where}: write it as FROM image, or FROM image AS name")
        base, name = _expanded(words[0], self._outer), "".join(words[2:]).lower()
        if (earlier := self.named(base)) is not None:
            self.made.append(replace(earlier, name=name, values=dict(earlier.values)))
        else:
            self.made.append(
                _Stage(name, base if base == "scratch" else RegistryImage(base, where))
            )
            base = base if base == "scratch" else qualified(base, where)
        return " ".join(("FROM", *options, base, *words[1:]))

    def _declare(self, pairs: Mapping[str, str | None]) -> None:
        for name, default in pairs.items():
            values = self.made[-1].values if self.made else self._outer
            value = self._outer.get(name) if default is None else _expanded(default, values)
            if (value := self._args.get(name, value)) is not None:
                values[name] = value

    def _set(self, pairs: Mapping[str, str | None]) -> None:
        values = self.made[-1].values
        values.update({name: _expanded(value or "", values) for name, value in pairs.items()})


def _instructions(path: str, text: str) -> Iterator[tuple[Instruction, int]]:
    """Yield each instruction, and the number of its last line.

    A line that ends in a backslash goes on in the next one, whatever comments and empty lines are between.
    """
    escape = "`" if _BACKTICK.match(text) else "\\"
    lines, pending, first = text.split("\n"), "", 0
    numbered = iter(enumerate(lines, 1))
    for number, line in numbered:
        line, is_last = line.rstrip(), number == len(lines)
        skipped = not line or line.lstrip().startswith("#")
        if not skipped:
            first = first or number
            pending += line.removesuffix(escape)
        if not pending.strip() or ((skipped or line.endswith(escape)) and not is_last):
            continue
        name, *rest = pending.split(None, 1)
        written = " ".join((name.upper(), *rest))
        flags = re.sub(r"[\"'\\]", "", match[1] if (match := _FLAGS.match(written)) else "")
        heredocs = _heredocs(written) if name.upper() in ("ADD", "COPY", "RUN") else []
        for dash, _, end in heredocs:
            if not any(
                (each.lstrip("\t") if dash else each).rstrip("\r") == end for _, each in numbered
            ):
                raise ConfigurationError(
                    f"{path}, line {first}: {name.upper()}: no line {end!a} ends it"
                )
        yield Instruction(first, written, flags, bool(heredocs)), number
        pending, first = "", 0


def _heredocs(text: str) -> list[tuple[str, str, str]]:
    """Return the here-documents that begin in an instruction: "-" or "", a quote, and the word that ends it."""
    with contextlib.suppress(ValueError):
        matches = map(_HEREDOC.fullmatch, shlex.split(text, posix=False))
        return [(each[1], each[2], each[3]) for each in matches if each]
    return []


def _expanded(text: str, values: Mapping[str, str]) -> str:
    """Replace the variables that are known, and those with a default."""
    return _VARIABLE.sub(
        lambda found: (
            values.get(found[1] or found[2]) or (found[0] if found[3] is None else found[3])
        ),
        text,
    )


def _pairs(rest: str) -> dict[str, str | None]:
    """Return the names of an ARG or ENV with their values, None for none."""
    with contextlib.suppress(ValueError):
        words = shlex.split(rest)
        if len(words) > 1 and "=" not in words[0]:
            return {words[0]: " ".join(words[1:])}
        pairs = (word.partition("=") for word in words)
        return {name: value if equals else None for name, equals, value in pairs}
    return {}


def _words(rest: str) -> str:
    """Return a list of paths, which may be JSON, for a shell."""
    with contextlib.suppress(ValueError):
        return shlex.join(json.loads(rest))
    return rest

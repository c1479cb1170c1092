"""Programs that build Dockerfiles: the docker command line, with BuildKit or without, and buildah."""

import os
import re
import shutil
import subprocess
import tempfile
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

import anyio
from anyio.streams.text import TextReceiveStream

from sandboxkit.errors import ConfigurationError, ImageBuildError
from sandboxkit.types import Dockerfile, Instruction

_CLASSIC_FLAGS = re.compile(
    r"(?:--(?:from|chown|platform|start-period|interval|timeout|retries)=\S*(?:\s+|$))*"
)
_STEP = re.compile(r"(?:\[\d+/\d+\] )?S(?:tep|TEP) \d+/\d+ ?: (.+)")
_FAILED = re.compile(r" > \[[^\]]*(?<!\d)\d+/\d+\] (.+):")
"""How BuildKit, whose steps run side by side, names the one that failed."""
_MARKED = re.compile(r" *(\d+) \| >>> .*")
"""How a newer one marks it in the Dockerfile, with its line."""
_HEREDOCS = {"docker": (23, 0), "buildah": (1, 33)}
"""The first versions that have here-documents."""
_BUILDKIT = {"DOCKER_BUILDKIT": "1"}
_PATIENCE = 20.0
"""Seconds that a program may take to tell its version."""
_KEPT = 20
"""How many of the last lines an error shows."""
_LONGEST = 10_000
_MORE = "install docker's command line with its part buildx, or buildah 1.33 or later"


@dataclass(frozen=True, slots=True)
class Builder:
    """A program that builds a Dockerfile, and what it cannot build."""

    name: str
    argv: tuple[str, ...]
    options: tuple[str, ...] = ()
    """The options of its builds."""
    heredocs: bool = False
    is_classic: bool = False
    """Whether it is docker without BuildKit."""

    @property
    def is_docker(self) -> bool:
        """Whether the image is in docker's daemon."""
        return self.name.startswith("docker")

    def lacks(self, file: Dockerfile) -> str:
        """Return the first thing in a Dockerfile that it cannot build, with its line; "" if it can build it."""
        for each in file.instructions:
            where = f"line {each.line}: {each.name}"
            if each.heredoc and not self.heredocs:
                return f"{where} with a here-document"
            if self.is_classic and not _CLASSIC_FLAGS.fullmatch(each.flags):
                return f"{where} {each.flags.strip()!a}"
        return "a secret" if self.is_classic and file.secrets else ""


async def docker(*options: str) -> list[Builder]:
    """Return docker's builder if its command line and a daemon are here; `options` name the daemon."""
    if (program := shutil.which("docker")) is None:
        return []
    asked = "{{(index .Server.Components 0).Name}} {{.Server.Version}}"
    server = await _said(program, *options, "version", "--format", asked)
    usage = await _said(program, "build", "--help")
    name, argv = f"docker {server.rpartition(' ')[2]}", (program, *options)
    if not server:
        return []
    if "--progress" not in usage or "Podman" in server:
        return [Builder(f"{name} without BuildKit", argv, ("--force-rm",), is_classic=True)]
    more = ("--progress=plain", *(["--load"] if "--load" in usage else []))
    return [Builder(f"{name} with BuildKit", argv, more, _has_heredocs("docker", server))]


async def buildah() -> list[Builder]:
    """Return buildah if it is here."""
    if (program := shutil.which("buildah")) is None:
        return []
    said = await _said(program, "--version")
    name = said.replace(" version", "").partition(" (")[0]
    # OCI's format has no SHELL.
    return [Builder(name, (program,), ("--format", "docker"), _has_heredocs("buildah", said))]


def _has_heredocs(program: str, version: str) -> bool:
    number = re.search(r"(\d+)\.(\d+)", version)
    return number is not None and (int(number[1]), int(number[2])) >= _HEREDOCS[program]


async def _said(*argv: str) -> str:
    """Return what a program prints; "" if it fails or does not end."""
    # An ordinary user's buildah makes folders there, and leaves them.
    with tempfile.TemporaryDirectory() as folder, anyio.move_on_after(_PATIENCE):
        env = os.environ | _BUILDKIT | {"TMPDIR": folder}
        done = await anyio.run_process(argv, check=False, env=env)
        return done.stdout.decode(errors="replace").strip() if done.returncode == 0 else ""
    return ""


def diagnosis(builders: Sequence[Builder]) -> tuple[str, list[str]]:
    """Return what `doctor` says of the builders that are here, and the remedy if they lack something."""
    names = " and ".join(each.name for each in builders) or "nothing"
    complete = any(each.heredocs for each in builders)
    remedies = [] if complete else [f"for every Dockerfile {_MORE}"]
    return f"; builds Dockerfiles with {names}", remedies


def chosen(builders: Sequence[Builder], file: Dockerfile) -> Builder:
    """Return the first that can build a Dockerfile. Raises ConfigurationError with what the others lack."""
    lacking = [(each.name, each.lacks(file)) for each in builders]
    for builder, (_, lack) in zip(builders, lacking, strict=True):
        if not lack:
            return builder
    why = "; ".join(f"{name} cannot build {lack}" for name, lack in lacking)
    raise ConfigurationError(f"{file.path}: {why or 'nothing here builds Dockerfiles'}: {_MORE}")


async def build(
    builder: Builder, file: Dockerfile, name: str, network: str, tell: Callable[[str], None]
) -> None:
    """Build an image and name it. Raises ImageBuildError with the instruction that failed, and its last output."""
    argv = [*builder.argv, "build", *builder.options, "--tag", name, "--file", "-"]
    argv += ["--network", "none"] if network == "none" else []
    argv += ["--target", file.target] if file.target else []
    argv += [word for key, value in file.args for word in ("--build-arg", f"{key}={value}")]
    argv += [word for secret in file.secrets for word in ("--secret", secret)]
    lines, marked = deque[str](maxlen=_KEPT), list[str]()
    steps, named = list[str](), list[str]()

    def take(line: str) -> None:
        lines.append(line)
        for pattern, found in ((_STEP, steps), (_FAILED, named), (_MARKED, marked)):
            if match := pattern.fullmatch(line):
                found.append(_same(match[1]))
        tell(line)

    if await _run(builder, [*argv, file.folder], take, file.text):
        by_line = [each for each in file.instructions if str(each.line) in marked[:1]]
        where = by_line[0] if by_line else _last(file, named or steps)
        shown = "".join(f"\n  {line}" for line in lines)
        told = f", line {where.line}: {where.text}" if where else ""
        raise ImageBuildError(f"{file.path}{told} failed, says {builder.name}:{shown}")


async def build_archive(
    builder: Builder,
    file: Dockerfile,
    name: str,
    network: str,
    tell: Callable[[str], None],
    archive: str,
) -> None:
    """Build an image and write it to a file, as `docker save` does; nothing else of it stays."""
    name = (
        f"docker.io/library/{name}"  # or docker finds buildah's own name, "localhost/...", as well
    )
    await build(builder, file, name, network, tell)
    save = ["save", "--output", archive, name]
    if not builder.is_docker:
        save = ["push", "--quiet", name, f"docker-archive:{archive}:{name}"]
    lines = deque[str](maxlen=1)
    try:
        if await _run(builder, [*builder.argv, *save], lines.append):
            raise ImageBuildError(f"{builder.name} cannot write the image to {archive}: {lines}")
    finally:
        with anyio.CancelScope(shield=True):
            await _run(builder, [*builder.argv, "rmi", name], lines.append)


async def _run(
    builder: Builder, argv: Sequence[str], tell: Callable[[str], None], stdin: str = ""
) -> int:
    """Run a program and return its status. A cancellation ends it, and waits for that."""
    env, held = os.environ | ({"DOCKER_BUILDKIT": "0"} if builder.is_classic else _BUILDKIT), ""
    with tempfile.TemporaryFile() as given:
        given.write(stdin.encode())
        given.seek(0)
        process = await anyio.open_process(argv, stdin=given, stderr=subprocess.STDOUT, env=env)
    assert process.stdout is not None
    async with process:
        try:
            async for text in TextReceiveStream(process.stdout, errors="replace"):
                *whole, held = (held[-_LONGEST:] + text).split("\n")
                for line in whole:
                    tell(line.rstrip())
            return await process.wait()
        except BaseException:
            with suppress(ProcessLookupError):
                process.terminate()
            with anyio.move_on_after(_PATIENCE, shield=True):  # it removes its containers
                await process.wait()
            raise


def _last(file: Dockerfile, steps: Sequence[str]) -> Instruction | None:
    """Return the instruction that a builder named last; None if it is unknown.

    Of several with the same text it is that which the builder has come to.
    """
    found = [each for each in file.instructions if _same(each.text) in steps[-1:]]
    return found[min(steps.count(steps[-1]), len(found)) - 1] if found else None


def _same(text: str) -> str:
    return " ".join(text.split()).lower()

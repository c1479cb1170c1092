"""One task, read from its folder: what to do, where to do it, how it is tested."""

import posixpath
import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sandboxkit import ConfigurationError


@dataclass(frozen=True, slots=True)
class Task:
    """A task on disk. `tests` reach a sandbox only after the agent's work has ended."""

    id: str
    instruction: str
    tests: Path
    image: str | None = None
    """None: the provider's own."""
    setup: str | None = None
    """A bash script that runs once in the agent's sandbox, after the seeds are there."""
    seeds: Path | None = None
    """A folder whose contents are in `workdir` at the start."""
    workdir: str = "/workspace"
    artefacts: tuple[str, ...] = ("/workspace",)
    """What is graded: absolute paths that are copied to the sandbox with the tests."""
    judged: bool = False
    """Graded by `judge.py` in a sandbox of its own, and not by `test.sh` beside the code."""
    in_place: bool = False
    """Grade in the agent's own sandbox, where the agent may have tampered with anything."""
    setup_timeout: float = 300.0
    test_timeout: float = 300.0
    memory_mb: int | None = None
    cpus: float | None = None


def load_task(folder: Path) -> Task:
    """Read a task. Raises ConfigurationError that names the file where something is missing.

    The layout is `instruction.md`, `tests/judge.py` or `tests/test.sh` (`judge.py` wins) and,
    optionally, `image.txt`, `setup.sh`, `environment/seeds/`. Each top-level `test_...()` of
    judge.py is a check, which fails by raising; it runs in a sandbox without the submission and
    reaches that by `import subject`. test.sh runs beside the submission, in /tests; it ends with
    exit status 0 for a success and may write a score of 0 to 1 to /logs/verifier/reward.txt. A
    score above 0 with another exit status is tampering. A `task.toml` may have a table `[sandboxkit]` with `in_place` and
    `artefacts`, and of Harbor's keys `environment.docker_image`, `.memory_mb`, `.cpus`,
    `verifier.timeout_sec`. Harbor's `environment/Dockerfile` is not built: its image must
    exist, as `docker_image` or as the FROM of a Dockerfile that adds at most a WORKDIR.
    """
    if not (folder / "instruction.md").is_file():
        raise ConfigurationError(f"task {folder.name!r}: there is no {folder / 'instruction.md'}")
    tests = folder / "tests"
    judged = (tests / "judge.py").is_file()
    if not judged and not (tests / "test.sh").is_file():
        raise ConfigurationError(
            f"task {folder.name!r}: there is neither {tests / 'judge.py'} nor {tests / 'test.sh'}"
        )
    settings = _settings(folder / "task.toml")
    environment = _table(settings, "environment", folder)
    own = _table(settings, "sandboxkit", folder)
    image, workdir = _image(folder, environment)
    seeds = folder / "environment" / "seeds"
    try:
        return Task(
            id=folder.name,
            instruction=(folder / "instruction.md").read_text("utf-8"),
            tests=tests,
            judged=judged,
            image=image,
            setup=_text(folder / "setup.sh"),
            seeds=seeds if seeds.is_dir() else None,
            workdir=workdir,
            artefacts=_artefacts(own.get("artefacts", (workdir,))),
            in_place=bool(own.get("in_place", False)),
            setup_timeout=float(own.get("setup_timeout", 300.0)),
            test_timeout=float(_table(settings, "verifier", folder).get("timeout_sec", 300.0)),
            memory_mb=environment.get("memory_mb"),
            cpus=environment.get("cpus"),
        )
    except (TypeError, ValueError) as error:
        raise ConfigurationError(f"{folder / 'task.toml'}: {error}") from error


# Any: what TOML holds, here and below.
def _artefacts(paths: Any) -> tuple[str, ...]:
    """Raises ValueError for one that is where the tests will be."""
    for path in paths:
        if posixpath.normpath(path).split("/")[1:2] in (["tests"], ["logs"]):
            raise ValueError(f"artefact {path!r} is in the way of the tests, in /tests and /logs")
    return tuple(paths)


def _settings(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        return tomllib.loads(path.read_text("utf-8"))
    except ValueError as error:
        raise ConfigurationError(f"{path}: {error}") from error


def _table(settings: dict[str, Any], name: str, folder: Path) -> dict[str, Any]:
    table = settings.get(name, {})
    if not isinstance(table, dict):
        raise ConfigurationError(f"{folder / 'task.toml'}: [{name}] is not a table")
    return table


def _text(path: Path) -> str | None:
    return path.read_text("utf-8") if path.is_file() else None


def _image(folder: Path, environment: dict[str, Any]) -> tuple[str | None, str]:
    """The image and the directory in which the agent works."""
    dockerfile = _text(folder / "environment" / "Dockerfile")
    base, workdir, more = _dockerfile(dockerfile or "")
    named = environment.get("docker_image") or (_text(folder / "image.txt") or "").strip()
    if named:
        return named, workdir
    if dockerfile is None:
        return None, workdir
    if base is None or more:
        raise ConfigurationError(
            f"{folder / 'environment/Dockerfile'} needs a build ({', '.join(sorted(more))}); build it "
            "and name the image as docker_image under [environment] in task.toml, or in image.txt"
        )
    return base, workdir


def _dockerfile(text: str) -> tuple[str | None, str, set[str]]:
    """Its last image, its last working directory, and the instructions that need a build."""
    base, workdir, more = None, "/workspace", set[str]()
    for line in re.sub(r"\\\n", " ", text).splitlines():
        word, _, rest = line.strip().partition(" ")
        match word.upper():
            case "FROM":
                base = rest.split()[0] if rest.split() else None
            case "WORKDIR":
                workdir = rest.strip()
            case "" | "CMD" | "ENTRYPOINT" | "LABEL":
                pass
            case other if not other.startswith("#"):
                more.add(other)
    return base, workdir, more

"""A SWE task (instruction, environment, tests), and its loader from a folder."""

import posixpath
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sandboxkit import ConfigurationError, Egress, Image, Snapshot
from sandboxkit.datasets import Folder
from sandboxkit.images import RegistryImage
from sandboxkit.integrations.swe.folder import (
    allowed,
    dockerfile,
    public_network,
    read_settings,
    read_table,
    task_folder,
    tests_folder,
)
from sandboxkit.types import Network

_MOST_SECONDS = 10**9


@dataclass(frozen=True, slots=True)
class Task:
    """A task on disk. Its folder `tests` is uploaded to a sandbox only after the agent has finished."""

    id: str
    instruction: str
    tests: Path
    image: str | Image | Snapshot | None = None
    """Image of the sandboxes, which is built before the first one starts; None: the provider's default."""
    build_network: Network = "none"
    """Network of the image's build."""
    setup: str | None = None
    """A bash script that runs once in the agent's sandbox, after the seeds have been copied there."""
    seeds: Path | None = None
    """A folder whose contents are copied to `workdir` before the agent starts."""
    workdir: str = "/workspace"
    artefacts: tuple[str, ...] = ("/workspace",)
    """Absolute paths to grade. They are copied to the sandbox in which the tests run."""
    judged: bool = False
    """Whether `judge.py` grades in a separate sandbox, instead of `test.sh` in the one with the code."""
    in_place: bool = False
    """Grade in the agent's own sandbox, where the agent may have tampered with anything."""
    setup_timeout: float = 300.0
    """Time limit of `setup` in seconds."""
    test_timeout: float = 300.0
    """Time limit of the tests in seconds."""
    memory_mb: int | None = None
    cpus: float | None = None
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Environment variables of the agent's sandbox and of the tests' sandbox."""
    network: Network | Egress | None = None
    """Network of the agent's sandbox; None: the session's setting."""
    setup_network: Egress | None = None
    """The servers that `setup` may reach. Afterwards `network` applies, or "none" without one."""
    test_env: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Additional environment variables for `test.sh`."""
    test_network: Network | Egress | None = None
    """Network of the tests' sandbox; None: the session's setting or, with `in_place`, the agent's."""
    reward_decides: bool = False
    """Whether `test.sh` follows Harbor: the reward that it writes counts, and its exit status does not.
    Without a reward the sample is masked, unless the submission prevented the reward."""

    def __post_init__(self) -> None:
        """Raise ConfigurationError for errors that would otherwise occur only after the agent's work."""
        for name in ("setup_timeout", "test_timeout"):
            seconds = getattr(self, name)
            if not 0 < seconds <= _MOST_SECONDS:
                raise ConfigurationError(
                    f"task {self.id!r}: {name}={seconds!r} is not a positive number of seconds"
                )
        if self.setup_network is not None and self.network == "internet":
            raise ConfigurationError(
                f"task {self.id!r}: setup_network and network='internet' exclude each other, since "
                "'internet' cannot be taken away later; remove one of them"
            )
        if self.changes_network and "internet" in (self.network or "internet", self.test_network):
            raise ConfigurationError(
                f"task {self.id!r}: in_place runs the tests in the agent's sandbox, whose network "
                f"{self.network!r} cannot become {self.test_network!r}; give 'none' or an Egress for both"
            )
        for path in () if self.in_place else self.artefacts:
            if not path.startswith("/") or posixpath.normpath(path) in ("/", "//"):
                raise ConfigurationError(
                    f"task {self.id!r}: artefact {path!r} is not the absolute path of a file or "
                    "folder; give a working directory other than '/', or grade with in_place"
                )

    @property
    def changes_network(self) -> bool:
        """Whether the agent's sandbox gets another network before the tests run in it."""
        return self.in_place and self.test_network not in (None, self.network)


def load_task(folder: Path, *, allow_network: str | Collection[str] = ()) -> Task:
    """Read a task from its folder. Raises ConfigurationError, which names the missing or invalid file.

    The layout is `instruction.md`, `tests/judge.py` or `tests/test.sh` (`judge.py` wins) and,
    optionally, `image.txt`, `setup.sh`, `environment/seeds/`. Each top-level `test_...()` of
    judge.py is a check, which fails by raising. It runs in a sandbox without the submission and
    reaches its files and programs through `import subject`. test.sh is in /tests, in the sandbox of the
    submission; it exits with status 0 on success and may write a score from 0 to 1 to
    /logs/verifier/reward.txt. A score above 0 with another exit status counts as tampering.

    `task.toml` may have a table `[sandboxkit]` with `in_place`, `artefacts`, `setup_timeout` and
    `setup_allow`, the names of the servers that `setup.sh` may reach, and Harbor's keys
    `environment.docker_image`, `.memory_mb`, `.cpus` and `verifier.timeout_sec`.
    The image is `docker_image`, or that of `environment/Dockerfile`, which is built before the task's first
    sandbox if it adds more than a WORKDIR; the build has a network with `allow_network="internet"` alone.

    Somebody else may have made the folder: images are those of registries, no link may lead out of the
    folder, and `allow_network` has the servers that the task may name, or "internet" for all.
    """
    files = task_folder(folder)
    instruction = files.text("instruction.md")
    if instruction is None:
        raise ConfigurationError(f"task {folder.name!r}: there is no {folder / 'instruction.md'}")
    tests = tests_folder(files)
    judged = tests is not None and tests.text("judge.py") is not None
    if tests is None or (not judged and tests.text("test.sh") is None):
        test = folder / "tests"
        raise ConfigurationError(
            f"task {folder.name!r}: there is neither {test / 'judge.py'} nor {test / 'test.sh'}"
        )
    settings = read_settings(files)
    environment = read_table(settings, "environment", folder)
    own = read_table(settings, "sandboxkit", folder)
    servers = own.get("setup_allow")
    image, workdir = _image(files, environment)
    setup, seeds = files.text("setup.sh"), files.subfolder("environment/seeds")
    try:
        network = None if servers is None else Egress(allow=servers)
        allowed(folder.name, network, allow_network)
        return Task(
            id=folder.name,
            instruction=instruction,
            tests=tests.path,
            judged=judged,
            image=image,
            build_network=public_network(allow_network),
            setup=setup,
            seeds=seeds,
            workdir=workdir,
            artefacts=_artefacts(own.get("artefacts", (workdir,))),
            in_place=bool(own.get("in_place", False)),
            setup_timeout=float(own.get("setup_timeout", 300.0)),
            setup_network=network,
            test_timeout=float(read_table(settings, "verifier", folder).get("timeout_sec", 300.0)),
            memory_mb=environment.get("memory_mb"),
            cpus=environment.get("cpus"),
        )
    except (OverflowError, TypeError, ValueError) as error:
        raise ConfigurationError(f"{folder / 'task.toml'}: {error}") from error


# Any: TOML values, here and below.
def _artefacts(paths: Any) -> tuple[str, ...]:
    """Return the artefacts. Raises ValueError for a path inside /tests or /logs."""
    for path in paths:
        if "\0" in path:
            raise ValueError(f"artefact {path!r} has a NUL character")
        if posixpath.normpath(path).split("/")[1:2] in (["tests"], ["logs"]):
            raise ValueError(
                f"artefact {path!r} conflicts with the tests, which use /tests and /logs"
            )
    return tuple(paths)


def _image(files: Folder, environment: dict[str, Any]) -> tuple[Image | str | None, str]:
    """Return the image and the agent's working directory."""
    image, workdir = dockerfile(files, "environment")
    named = environment.get("docker_image") or (files.text("image.txt") or "").strip()
    if named:
        image = RegistryImage(named, f"task {files.path.name!r}")
    return image, workdir or "/workspace"

"""A SWE task: instruction, environment, limits, tests and solution."""

import posixpath
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from sandboxkit import ConfigurationError, Egress, Image, Snapshot
from sandboxkit.types import Network

_MOST_SECONDS = 10**9


@dataclass(frozen=True, slots=True)
class Healthcheck:
    """A command that must succeed before the agent starts, repeated as docker's HEALTHCHECK is; times in seconds."""

    command: str
    interval_sec: float = 5.0
    timeout_sec: float = 30.0
    start_period_sec: float = 0.0
    """How long after the start a failure does not count towards `retries`."""
    start_interval_sec: float = 5.0
    retries: int = 3


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
    build_timeout: float | None = None
    """Time limit of the image's build in seconds; None: an hour."""
    setup: str | None = None
    """A bash script that runs once in the agent's sandbox, after the seeds have been copied there."""
    seeds: Path | None = None
    """A folder whose contents are copied to `workdir` before the agent starts."""
    workdir: str = "/workspace"
    artefacts: tuple[str, ...] = ("/workspace",)
    """Absolute paths to grade. They are copied to the sandbox in which the tests run."""
    collect: tuple[str, ...] | None = None
    """A command that makes the artefacts in the agent's sandbox after its work; if it fails, the reward is 0."""
    judged: bool = False
    """Whether `judge.py` grades in a separate sandbox, instead of `test.sh` in the one with the code."""
    in_place: bool = False
    """Grade in the agent's own sandbox, where the agent may have tampered with anything."""
    setup_timeout: float = 300.0
    """Time limit of `setup` in seconds."""
    test_timeout: float = 300.0
    """Time limit of the tests in seconds."""
    agent_timeout: float | None = None
    """Seconds that all calls of the agent may take together; the model's own time does not count."""
    memory_mb: int | None = None
    cpus: float | None = None
    disk_mb: int | None = None
    """Room for files; a provider without a limit on files has as much as its host."""
    user: str | None = None
    """User of the agent's sandbox; None: the session's."""
    test_user: str | None = None
    """User of the tests' sandbox; None: the session's or, with `in_place`, the agent's."""
    healthcheck: Healthcheck | None = None
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
    script: Path | None = None
    """A file that is copied beside the tests and runs them, in the place of their `test.sh`."""
    parser: str | None = None
    """Who reads the results that the tests print, which count as the reward: Terminal-Bench's name of their format,
    or "the package swebench"."""
    solution: Path | str | None = None
    """The reference: a folder with `solve.sh`, or the text of that script. Only `SweEnv.solve` uses it."""
    solution_env: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Additional environment variables for the solution."""
    metadata: Mapping[str, object] = field(default_factory=dict, repr=False, compare=False)
    """Information for readers, such as difficulty, category and authors; it changes nothing."""

    def __post_init__(self) -> None:
        """Raise ConfigurationError for errors that would otherwise occur only after the agent's work."""
        for name in ("setup_timeout", "test_timeout", "agent_timeout", "build_timeout"):
            seconds = getattr(self, name)
            if seconds is not None and not 0 < seconds <= _MOST_SECONDS:
                raise ConfigurationError(
                    f"task {self.id!r}: {name}={seconds!r} is not a positive number of seconds"
                )
        for name in ("memory_mb", "cpus", "disk_mb"):
            if (size := getattr(self, name)) is not None and not size > 0:
                raise ConfigurationError(f"task {self.id!r}: {name}={size!r} is not positive")
        if self.in_place and self.test_user not in (None, self.user):
            raise ConfigurationError(
                f"task {self.id!r}: in_place runs the tests in the agent's sandbox, as its user {self.user!r} and not "
                f"as {self.test_user!r}: grade it in a fresh sandbox, with in_place=False"
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

"""What an Inspect task may say about its sandboxes."""

from pathlib import Path
from typing import Any

import yaml  # type: ignore[import-untyped]  # no stubs
from pydantic import BaseModel, ConfigDict, ValidationError

from sandboxkit import ConfigurationError
from sandboxkit.types import Network, Profile

FILES = ("sandboxkit.yaml", "sandboxkit.yml")
"""A task's folder may have one of these; then it need not be named."""
_SUFFIXES = (".yaml", ".yml", ".json")


class SandboxkitConfig(BaseModel, frozen=True):
    """Options of a sample's sandbox; each field but `provider` is that of `SandboxSpec`.

    Used as `SandboxEnvironmentSpec("sandboxkit", SandboxkitConfig(provider="docker"))`, or written
    to a YAML file that is named instead: `("sandboxkit", "sandbox.yaml")`. A field left out has
    sandboxkit's own default, and an unknown one is refused.
    """

    model_config = ConfigDict(extra="forbid")

    provider: str | None = None
    """The backend's name. None: SANDBOXKIT_PROVIDER, else the machine's default."""
    image: str | None = None
    env: dict[str, str] | None = None
    workdir: str | None = None
    user: str | None = None
    cpus: float | None = None
    memory_mb: int | None = None
    disk_mb: int | None = None
    pids: int | None = None
    network: Network | None = None
    profile: Profile | None = None
    lifetime: float | None = None

    def options(self) -> dict[str, Any]:  # Any: the keywords of Session, which checks them
        """The keywords for a Session."""
        return self.model_dump(exclude_none=True, exclude={"provider"})


def read(config: BaseModel | str | None) -> SandboxkitConfig:
    """What a task or `--sandbox sandboxkit:...` gave: a provider's name, a YAML file, or options.

    Raises ConfigurationError for what is neither of these, and for a file that is not there or
    does not say what it should.
    """
    if config is None:
        return SandboxkitConfig()
    if isinstance(config, SandboxkitConfig):
        return config
    if not isinstance(config, str):
        raise ConfigurationError(
            f"sandbox config {config!r} is not a SandboxkitConfig; "
            'use SandboxEnvironmentSpec("sandboxkit", SandboxkitConfig(...))'
        )
    if not config.endswith(_SUFFIXES):
        # Inspect takes every string for a file's name, and puts the task's folder before it.
        return SandboxkitConfig(provider=Path(config).name)
    remedy = "it holds the fields of SandboxkitConfig, such as 'provider: docker'"
    try:
        return SandboxkitConfig.model_validate(yaml.safe_load(Path(config).read_text()) or {})
    except OSError as error:
        raise ConfigurationError(f"sandbox config {config!r}: {error.strerror}") from error
    except (ValidationError, ValueError, yaml.YAMLError) as error:
        said = " ".join(str(error).split())
        raise ConfigurationError(f"sandbox config {config!r}: {said}; {remedy}") from error

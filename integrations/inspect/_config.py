"""The sandbox configuration of an Inspect task."""

from pathlib import Path
from typing import TYPE_CHECKING, Unpack

import yaml  # type: ignore[import-untyped]  # no stubs
from pydantic import BaseModel, ValidationError

from sandboxkit import ConfigurationError
from sandboxkit.images import RegistryImage
from sandboxkit.integrations._option_fields import OptionFields
from sandboxkit.options import ConfigOptions

FILES = ("sandboxkit.yaml", "sandboxkit.yml")
"""Configuration files that are found automatically in a task's folder."""
_SUFFIXES = (".yaml", ".yml", ".json")
OF_DOCKER = (
    "compose.yaml",
    "compose.yml",
    "docker-compose.yaml",
    "docker-compose.yml",
    "Dockerfile",
)
"""Files of Inspect's own docker sandbox."""


class SandboxkitConfig(OptionFields):
    """Options of a sample's sandbox. The fields are `provider` and those of `ConfigOptions`.

    Use it as `SandboxEnvironmentSpec("sandboxkit", SandboxkitConfig(provider="docker"))`, or write the
    fields to a YAML file and give its name: `("sandboxkit", "sandbox.yaml")`. Missing fields have
    sandboxkit's defaults; unknown fields are refused.
    """

    provider: str | None = None
    """Name of the backend. None: SANDBOXKIT_PROVIDER, else the machine's default."""

    if TYPE_CHECKING:

        def __init__(
            self, *, provider: str | None = None, **options: Unpack[ConfigOptions]
        ) -> None: ...


def read(config: BaseModel | str | None) -> SandboxkitConfig:
    """Return the options for Inspect's sandbox config: a provider's name, a YAML file's name, or options.

    With a provider's name the file in the task's folder counts as well. A file may lie beside a data set, and a row
    may name it: its `image` is one of a registry. Raises ConfigurationError for any other value, for a missing or
    invalid file, and for a task that has a Dockerfile or a compose file in its place.
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
    place = Path(config)
    if place.name in OF_DOCKER:
        raise _unbuilt(place)
    if not config.endswith(_SUFFIXES):
        # Inspect treats every string as a file name and prepends the task's folder.
        beside = (place.with_name(each) for each in (*FILES, *OF_DOCKER))
        own = next(filter(Path.is_file, beside), None)
        given = SandboxkitConfig() if own is None else read(str(own))
        return given.model_copy(update={"provider": place.name})
    remedy = "it must contain fields of SandboxkitConfig, such as 'provider: docker'"
    try:
        found = SandboxkitConfig.model_validate(yaml.safe_load(Path(config).read_text()) or {})
        if (image := found.options().get("image")) is None:
            return found
        return found.model_copy(
            update={"image": RegistryImage(image, f"sandbox config {config!r}")}
        )
    except ConfigurationError:
        raise
    except OSError as error:
        raise ConfigurationError(f"sandbox config {config!r}: {error.strerror}") from error
    except (ValidationError, ValueError, yaml.YAMLError) as error:
        reason = " ".join(str(error).split())
        raise ConfigurationError(f"sandbox config {config!r}: {reason}; {remedy}") from error


def _unbuilt(file: Path) -> ConfigurationError:
    """Return the error for a task whose sandbox is a Dockerfile's or a compose file's."""
    remedy = "use Inspect's own docker sandbox for several containers"
    if file.name == "Dockerfile":
        remedy = f"build it (docker build -t NAME {file.parent}), and write 'image: NAME' to {file.with_name(FILES[0])}"
    return ConfigurationError(
        f"{file} describes this task's sandbox, and nothing builds it: {remedy}"
    )

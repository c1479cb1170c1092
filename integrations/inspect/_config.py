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

    A file may lie beside a data set, and a row may name it: its `image` is one of a registry. Raises
    ConfigurationError for any other value, and for a missing or invalid file.
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
        # Inspect treats every string as a file name and prepends the task's folder.
        return SandboxkitConfig(provider=Path(config).name)
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

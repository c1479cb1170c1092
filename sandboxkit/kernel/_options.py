"""The options of a kernel, declared once."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypedDict

from sandboxkit._calls import _arguments
from sandboxkit.errors import ConfigurationError

OUTPUT_LIMIT = 10 << 20
_LEAST_OUTPUT = 4096


class KernelOptions(TypedDict, total=False):
    """The options of `Sandbox.python`."""

    python: str
    """The Python to run, as a name or a path. Default: "python3"."""
    ipykernel: bool | None
    """True requires ipykernel, False selects sandboxkit's own small kernel. Default: None, which
    uses ipykernel if that Python has it."""
    cwd: str | None
    """The initial working folder. Default: the sandbox's workdir."""
    env: Mapping[str, str] | None
    """Variables that are added to the sandbox's environment."""
    user: str | None
    """The user to run as. Default: the sandbox's user."""
    output_limit: int
    """Size limit of a result in bytes, at least 4096; a larger result loses its middle. Default:
    10 MiB."""


@dataclass(frozen=True, slots=True)
class Options:
    """The validated options of a kernel."""

    python: str = "python3"
    ipykernel: bool | None = None
    cwd: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    user: str | None = None
    output_limit: int = OUTPUT_LIMIT


def checked(given: KernelOptions) -> Options:
    """Validate the options. Raises ConfigurationError for an unknown or invalid one."""
    if unknown := set(given) - set(KernelOptions.__annotations__):
        raise ConfigurationError(
            f"python() has no argument {min(unknown)!r}; the arguments are {', '.join(Options.__annotations__)}"
        )
    python = _arguments.text("python", given.get("python", "python3"))
    wanted = given.get("ipykernel")
    limit = _arguments.size("output_limit", given.get("output_limit", OUTPUT_LIMIT))
    if limit < _LEAST_OUTPUT:
        _arguments.refuse("output_limit", limit, f"at least {_LEAST_OUTPUT} bytes")
    return Options(
        python,
        None if wanted is None else _arguments.flag("ipykernel", wanted),
        _arguments.cwd(given.get("cwd")),
        _arguments.env(given.get("env")),
        _arguments.user(given.get("user")),
        limit,
    )

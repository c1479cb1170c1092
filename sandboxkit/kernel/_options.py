"""The options of a kernel, declared once."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypedDict

from sandboxkit import _arguments

OUTPUT_LIMIT = 10 << 20
_LEAST_OUTPUT = 4096


class KernelOptions(TypedDict, total=False):
    """What `Sandbox.python` takes."""

    python: str
    """The Python to run, as a name or a path; "python3"."""
    ipykernel: bool | None
    """True needs ipykernel there, False uses the small kernel of ours; None, the default, uses
    ipykernel where that Python has it."""
    cwd: str | None
    """Where it begins; the sandbox's workdir."""
    env: Mapping[str, str] | None
    """Added to the sandbox's environment."""
    user: str | None
    """The sandbox's user."""
    output_limit: int
    """Bytes of a result, from 4096 on; 10 MiB. Of more the middle is left out."""


@dataclass(frozen=True, slots=True)
class Options:
    """The same, checked."""

    python: str = "python3"
    ipykernel: bool | None = None
    cwd: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    user: str | None = None
    output_limit: int = OUTPUT_LIMIT


def checked(given: KernelOptions) -> Options:
    """Raise ConfigurationError for what cannot be."""
    if unknown := set(given) - set(KernelOptions.__annotations__):
        _arguments.refuse(min(unknown), given[min(unknown)], ", ".join(Options.__annotations__))  # type: ignore[literal-required]
    python = _arguments.text("python", given.get("python", "python3"))
    wanted = given.get("ipykernel")
    cwd, user = given.get("cwd"), given.get("user")
    limit = _arguments.size("output_limit", given.get("output_limit", OUTPUT_LIMIT))
    if limit < _LEAST_OUTPUT:
        _arguments.refuse("output_limit", limit, f"at least {_LEAST_OUTPUT} bytes")
    return Options(
        python,
        None if wanted is None else _arguments.flag("ipykernel", wanted),
        None if cwd is None else _arguments.path(cwd, "cwd"),
        _arguments.env(given.get("env")),
        None if user is None else _arguments.text("user", user),
        limit,
    )

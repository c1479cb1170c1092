"""Session and sandbox options: from what callers write to one checked SandboxSpec."""

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

from sandboxkit import _arguments, _tags
from sandboxkit.errors import ConfigurationError
from sandboxkit.types import Interpreter, Network, Profile, Reuse, SandboxSpec


class SpecOptions(TypedDict, total=False):
    """The fields of `SandboxSpec` as keywords, in the looser types that callers may use.

    What each means is said here and nowhere else: editors show it at a keyword, and
    `sandboxkit.display.signatures` brings it into `help()` and docs/options.md.
    """

    image: str | None
    """Image reference; a root folder or OCI archive on local. None, the default: the provider's."""
    command: Sequence[str] | None
    """A main command to start with the sandbox: `logs()` shows it, `wait()` waits for it. Default: None."""
    env: Mapping[str, str]
    """Environment variables of all its commands, over the session's. Default: {}."""
    workdir: str | None
    """Absolute directory where commands start; made if missing. None, the default: /workspace, or where the image's user cannot make that `$HOME/workspace`; `Sandbox.workdir()` tells it."""
    user: str | None
    """User name or numeric uid for commands and file calls. None, the default: the image's."""
    cpus: float | None
    """How many processors it may use, such as 0.5. None, the default: the provider's limit, if any."""
    memory_mb: int | None
    """Memory in MiB, swap included. None, the default: the provider's limit."""
    disk_mb: int | None
    """How many MiB it may write. None, the default: the provider's limit, if any."""
    pids: int | None
    """How many processes and threads it may have. None, the default: the provider's limit, if any."""
    network: Network
    """'internet' lets it connect to anywhere; 'none', the default, to nothing but itself."""
    lifetime: float | None
    """Seconds after which it ends itself. Default: 3600.0; None: no limit, not allowed with `detach`."""
    start_timeout: float | None
    """Seconds that its start may take, waiting for room included; past them the calls that need it
    raise NoRoomError or ProviderUnavailableError. None, the default: it waits, and says so in the log."""
    tags: _tags.Tags
    """Labels to find it by, such as 'run:42', beside the session's. Default: {}."""
    files: Mapping[str, _arguments.Content]
    """Files to write before the first command: absolute sandbox path to content. Default: {}."""
    secrets: Mapping[str, str]
    """Variables whose values never appear in reprs, labels or listings. Default: {}."""
    gpu: str | None
    """GPUs, such as '1', in the words of the provider. Default: None."""
    profile: Profile
    """'strict': read-only root, sized writable folders, no root. Default: 'standard'."""
    detach: bool
    """Outlive the session and this process; the lifetime still ends it. Default: False."""
    interpreter: Interpreter | None
    """The Python that `run_python` forks. None, the default: there is none."""
    reuse: Reuse
    """'reset': what is stopped goes back to the session's pool, once it is proven to be as it was
    before its first command; it needs `profile="strict"`. Default: 'never'."""


PRELOAD = (
    "bisect",
    "collections",
    "copy",
    "dataclasses",
    "datetime",
    "decimal",
    "enum",
    "fractions",
    "functools",
    "heapq",
    "io",
    "itertools",
    "json",
    "math",
    "operator",
    "os",
    "random",
    "re",
    "statistics",
    "string",
    "sys",
    "time",
    "typing",
)
"""What `Session.run_python` has imported before its code comes."""

_FIELDS = tuple(field.name for field in dataclasses.fields(SandboxSpec))


def _tag_option(name: str, value: Any) -> dict[str, str]:
    if value is None:
        _arguments.refuse(name, value, "'run:42', a list or a mapping, and leave it out for none")
    return _tags.parse(value)


def _files(name: str, value: Any) -> dict[str, bytes]:
    files = _arguments.mapping(name, value, "{'/workspace/a.txt': b'...'}")
    return {
        _arguments.path(path, name): _arguments.content(f"{name}[{path!r}]", data)
        for path, data in files.items()
    }


def _interpreter(name: str, value: Any) -> Interpreter:
    if not isinstance(value, Interpreter):
        _arguments.refuse(name, value, "Interpreter(preload=('json', 'math'))")
    return Interpreter(
        _arguments.text(f"{name}.program", value.program),
        tuple(_arguments.text(f"{name}.preload", each) for each in value.preload),
        _arguments.text(f"{name}.setup", value.setup) if value.setup else "",
    )


_text = _arguments.optional(_arguments.text)
_positive = _arguments.optional(_arguments.positive)
_whole = _arguments.optional(_arguments.integer)
_CHECKS: dict[str, _arguments.Check] = {
    "image": _text,
    "command": _arguments.optional(lambda name, value: _arguments.argv(value, name)),
    "env": _arguments.variables,
    "workdir": _arguments.optional(lambda name, value: _arguments.path(value, name)),
    "user": _text,
    "cpus": _positive,
    "memory_mb": _whole,
    "disk_mb": _whole,
    "pids": _whole,
    "network": lambda name, value: _arguments.one_of(name, value, ("none", "internet")),
    "lifetime": _positive,
    "start_timeout": _positive,
    "tags": _tag_option,
    "files": _files,
    "secrets": _arguments.variables,
    "gpu": _text,
    "profile": lambda name, value: _arguments.one_of(name, value, ("standard", "strict")),
    "detach": _arguments.flag,
    "interpreter": _arguments.optional(_interpreter),
    "reuse": lambda name, value: _arguments.one_of(name, value, ("never", "reset")),
}


# Any: the values are what _CHECKS make of them; SpecOptions types the public signatures.
def build(base: SandboxSpec, options: Mapping[str, Any]) -> SandboxSpec:
    """Put `options` over `base`; tags and env merge, everything else replaces.

    Raises ConfigurationError for an unknown option or a bad value.
    """
    changes: dict[str, Any] = {}
    for name, value in options.items():
        if name not in _FIELDS:
            raise ConfigurationError(
                f"unknown option {name!r}{_arguments.nearest(name, _FIELDS)}; "
                f"the options are {', '.join(_FIELDS)}"
            )
        changes[name] = _CHECKS[name](name, value)
    for name in ("tags", "env", "secrets"):
        if name in changes:
            changes[name] = {**getattr(base, name), **changes[name]}
    spec = dataclasses.replace(base, **changes)
    if spec.detach and spec.lifetime is None:
        raise ConfigurationError("detach=True needs a lifetime; nothing else would end the sandbox")
    if spec.reuse == "reset" and spec.profile != "strict":
        raise ConfigurationError(
            f"reuse='reset' with profile={spec.profile!r}: only a sandbox with profile='strict' "
            "can be proven clean"
        )
    if spec.reuse == "reset" and (spec.detach or spec.command):
        raise ConfigurationError("reuse='reset' goes neither with detach=True nor with a command")
    return spec

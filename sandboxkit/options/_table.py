"""The table of options: type, check, flag, examples and meaning of each option of a sandbox."""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Annotated, Any, Literal, TypedDict, get_args

from sandboxkit import _tags
from sandboxkit._calls import _arguments
from sandboxkit._snapshot import Snapshot
from sandboxkit.datasets import Dataset, Volume, is_digest, volume_of
from sandboxkit.egress import Egress
from sandboxkit.errors import ConfigurationError
from sandboxkit.options._option import Option, read
from sandboxkit.types import Interpreter, Network, Profile, Reuse


def _tag_option(name: str, value: Any) -> dict[str, str]:
    if value is None:
        _arguments.refuse(name, value, "'run:42', a list or a mapping, or leave the option out")
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
        _arguments.arguments(f"{name}.preload", value.preload),
        _arguments.text(f"{name}.setup", value.setup) if value.setup else "",
    )


def _mounts(name: str, value: Any) -> dict[str, str]:
    mounts = _arguments.mapping(name, value, "{'/data': Dataset('folder')}")
    return {
        _arguments.path(path, name): _source(f"{name}[{path!r}]", mounted)
        for path, mounted in mounts.items()
    }


def _source(name: str, value: Any) -> str:
    if isinstance(value, Dataset):
        return value.digest
    if isinstance(value, Volume):
        return value.source
    if isinstance(value, str) and (is_digest(value) or volume_of(value)):
        return value
    _arguments.refuse(
        name,
        value,
        "Dataset('folder'), a stored one's digest, 'sha256:...', Volume('name') or 'volume:name'",
    )


def _snapshot(name: str, value: Any) -> str | None:
    if isinstance(value, Snapshot):
        return value.id
    if value is not None and not isinstance(value, str):
        _arguments.refuse(name, value, "a Snapshot, such as sandbox.snapshot().result(), or its id")
    return None if value is None else _arguments.text(name, value)


def _image(name: str, value: Any) -> str | None:
    if value is not None and not isinstance(value, str):
        remedy = "the name of an image; an Image is given as snapshot=image.build().result()"
        _arguments.refuse(name, value, remedy)
    return None if value is None else _arguments.text(name, value)


def _network(name: str, value: Any) -> str | Egress:
    if isinstance(value, Egress):
        return value
    if isinstance(value, list | Mapping) and value:
        # Any: Egress checks the types of its fields.
        given: dict[str, Any] = dict(value) if isinstance(value, Mapping) else {"allow": value}
        if unknown := [each for each in given if each not in _PLAIN_EGRESS]:
            remedy = f"the fields {', '.join(_PLAIN_EGRESS)}"
            _arguments.refuse(f"{name}[{unknown[0]!r}]", given[unknown[0]], remedy)
        try:
            return Egress(**given)
        except ConfigurationError as error:
            raise ConfigurationError(f"{name}={value!r}: {error}") from None
    if not isinstance(value, str):
        _arguments.refuse(
            name, value, "'none', 'internet', ['pypi.org'], or Egress(allow=['pypi.org'])"
        )
    if "." in value:
        _arguments.refuse(name, value, f"a list of names, such as [{value!r}]")
    return _arguments.one_of(name, value, get_args(Network))


def _ports(name: str, value: Any) -> tuple[int, ...]:
    if isinstance(value, str | bytes) or not isinstance(value, Sequence):
        _arguments.refuse(name, value, "a list of ports, such as [8000]")
    return tuple(_arguments.port(name, each) for each in value)


def _choice(literal: Any) -> _arguments.Check:
    return lambda name, value: _arguments.one_of(name, value, get_args(literal))


_text = _arguments.optional(_arguments.text)
_path = _arguments.optional(lambda name, value: _arguments.path(value, name))
_argv = _arguments.optional(lambda name, value: _arguments.argv(value, name))
_Isolation = Literal["namespaces", "landlock", "gvisor"]
_isolation = _arguments.optional(_choice(_Isolation))
_positive = _arguments.optional(_arguments.positive)
_seconds = _arguments.optional(
    lambda name, value: _arguments.positive(name, value, unit="seconds, such as 3600")
)
_whole = _arguments.optional(_arguments.integer)
_MOST_MIB = 1 << 24  # 16 TiB: a larger number is one of bytes
_mebibytes = _arguments.optional(
    lambda name, value: _arguments.integer(name, value, most=_MOST_MIB, unit="MiB")
)
_python = _arguments.optional(_interpreter)
_MOUNTS = Option(
    _mounts, "--mount DIR=DATA", ({"/data": f"sha256:{'0' * 64}"}, {"/cache": Volume("pip")})
)
_SNAPSHOT = Option(_snapshot, "--snapshot ID", (f"snapshot-{'0' * 16}",))
_NATIVE = {"allow": ["pypi.org"], "native": True}
_NETWORK = Option(
    _network, "--network", ("internet", Egress(allow=["pypi.org"]), ["pypi.org"], _NATIVE)
)
_PLAIN_EGRESS = tuple(
    each.name for each in fields(Egress) if each.name not in ("credentials", "tls")
)
"""The fields of an Egress that a configuration can hold."""
EgressValues = dict[str, bool | int | float | str | list[str] | dict[str, str]]
"""An Egress in a configuration: its fields by name."""


class _PlainOptions(TypedDict, total=False):
    """The options that are plain data, and no secrets."""

    image: Annotated[str | None, Option(_image, "--image REF", ("python:3.12",))]
    """Image reference; on local a root folder, an OCI archive or docker://NAME. None, the default: the provider's."""
    env: Annotated[Mapping[str, str], Option(_arguments.variables, "-e, --env K=V", ({"A": "1"},))]
    """Environment variables of all its commands. They are merged with the session's. Default: {}."""
    workdir: Annotated[str | None, Option(_path, "-w, --workdir DIR", ("/work",))]
    """Absolute directory where commands start; made if missing. None, the default: the image's WORKDIR, but for
    profile='strict'. Without one /workspace, or where the image's user cannot make that `$HOME/workspace`;
    `Sandbox.workdir()` returns it."""
    user: Annotated[str | None, Option(_text, "-u, --user USER", ("root", "1000"))]
    """User name or numeric uid for commands and file calls. None, the default: the image's."""
    cpus: Annotated[float | None, Option(_positive, "--cpus N", (1,))]
    """How many processors it may use, such as 0.5. None, the default: the provider's limit, if any."""
    memory_mb: Annotated[int | None, Option(_mebibytes, "--memory-mb N", (1024,))]
    """Memory in MiB, swap included. None, the default: the provider's limit."""
    disk_mb: Annotated[int | None, Option(_mebibytes, "--disk-mb N", (1024,))]
    """How many MiB it may write. None, the default: the provider's limit, if any."""
    pids: Annotated[int | None, Option(_whole, "--pids N", (64,))]
    """How many processes and threads it may have. None, the default: the provider's limit, if any."""
    gpu: Annotated[str | None, Option(_text, "--gpu KIND", ("1",))]
    """GPUs, such as '1', in the words of the provider. Default: None."""
    profile: Annotated[Profile, Option(_choice(Profile), "--profile", ("strict",))]
    """'strict': read-only root, sized writable folders, no root user. Default: 'standard'."""
    isolation: Annotated[_Isolation | None, Option(_isolation, "--isolation", get_args(_Isolation))]
    """'gvisor': a kernel of its own, between its programs and the machine's. On local also 'namespaces', and
    'landlock' where none can be made. None, the default: the provider's isolation."""
    lifetime: Annotated[float | None, Option(_seconds, "--lifetime TIME", (86400, 604800, None))]
    """Seconds from its creation until it ends itself. Default: 3600.0; None: no limit, not allowed
    with `detach`."""
    public_ports: Annotated[Sequence[int], Option(_ports, "", ([8000],))]
    """Ports that get an address at the vendor, for `public_url`. They are reachable from outside;
    `PublicUrl.access` tells by whom. Default: ()."""
    start_timeout: Annotated[float | None, Option(_positive, "--start-timeout TIME", (60,))]
    """Seconds that its start may take, waiting for room included. Past them the calls that need it
    raise NoRoomError or ProviderUnavailableError. None, the default: it waits, and the log says so."""


class ConfigOptions(_PlainOptions, total=False):
    """The options that a configuration file or a stored state can hold: plain data, no secrets.

    They are the fields of `SandboxkitConfig` (Inspect) and `SandboxkitClientOptions` (OpenAI Agents).
    """

    # An Egress can hold secrets, its plain fields cannot.
    network: Annotated[Network | list[str] | EgressValues, _NETWORK]
    mounts: Annotated[Mapping[str, str], _MOUNTS]  # 'sha256:...' or 'volume:name'
    snapshot: Annotated[str | None, _SNAPSHOT]  # the id


class SpecOptions(_PlainOptions, total=False):
    """The fields of `SandboxSpec` as keywords, in the looser types that callers may use."""

    network: Annotated[Network | Egress | list[str] | EgressValues, _NETWORK]
    """'internet' lets it connect to anywhere, 'none' to nothing but itself. Egress(allow=['pypi.org'])
    lets it reach these names alone, through this process; so does a list of rules, ['pypi.org'], or a
    mapping of Egress's fields, {'allow': ['pypi.org']}. Default: 'none'."""
    command: Annotated[Sequence[str] | None, Option(_argv, "", (["sleep", "60"],))]
    """A main command to start with the sandbox: `logs()` shows it, `wait()` waits for it. Default: None."""
    tags: Annotated[_tags.Tags, Option(_tag_option, "--tag TAG", ("run:1",))]
    """Labels to find it by, such as run:42. They are merged with the session's. Default: {}."""
    files: Annotated[Mapping[str, _arguments.Content], Option(_files, "", ({"/data/a": b"1"},))]
    """Files to write before the first command: absolute sandbox path to content. Default: {}."""
    secrets: Annotated[Mapping[str, str], Option(_arguments.variables, "--secret K", ({"A": "1"},))]
    """Variables whose values never appear in reprs, labels or listings. Default: {}."""
    detach: Annotated[bool, Option(_arguments.flag, "", (True,))]
    """Outlive the session and this process; the lifetime still ends it. Default: False."""
    interpreter: Annotated[Interpreter | None, Option(_python, "", (Interpreter(),))]
    """The Python that `run_python` forks. None, the default: there is none."""
    reuse: Annotated[Reuse, Option(_choice(Reuse), "", ("reset",))]
    """'reset': after `stop()` the session cleans a sandbox, verifies that its state is as before its
    first command, and returns it to its pool; needs `profile="strict"`. Default: 'never'."""
    mounts: Annotated[Mapping[str, Dataset | Volume | str], _MOUNTS]
    """Datasets to mount read-only and volumes to mount writable, by their absolute folder in the sandbox.
    Each is a `Dataset`, a stored one's digest, a `Volume`, or 'volume:name'. Default: {}."""
    snapshot: Annotated[Snapshot | str | None, _SNAPSHOT]
    """Snapshot to start from, or its id: `Sandbox.snapshot()` takes one. None, the default: start fresh."""


ALL_OPTIONS = read(SpecOptions)
"""Every option of a sandbox."""
CONFIG_OPTIONS = read(ConfigOptions)
"""The options of ConfigOptions."""

"""Resolves an id from the command line to a sandbox of any configured provider."""

import argparse
import contextlib
import re
from collections.abc import Iterator, Mapping

from sandboxkit import Operation, Sandbox, SandboxInfo, Session, _registry
from sandboxkit.cli import _configured, _providers
from sandboxkit.errors import ConfigurationError, SandboxError, SandboxNotFoundError
from sandboxkit.provider import Provider

_KIND = re.compile(r"[a-z]+-")
"""The prefix that all ids of a provider share, such as "local-"."""


@contextlib.contextmanager
def reached(args: argparse.Namespace, given: str) -> Iterator[Sandbox]:
    """Yield the sandbox with the id, or the id prefix, `given`; leaving the context does not stop it.

    Raises what `located` raises.
    """
    info = Operation(located(args.provider, given)).result()
    with Session(info.provider) as session:
        yield session.from_id(info.id).result()


async def located(provider: str | None, given: str) -> SandboxInfo:
    """Find a sandbox by its id or a unique prefix of the id, with or without a part such as "local-".

    Without `provider`, search the default provider first and then all configured ones. Raises
    `SandboxNotFoundError` if there is none, `ConfigurationError` if the prefix is ambiguous or a
    provider did not respond, so that it may be, and the errors of a named `provider`.
    """
    if not given:
        raise ConfigurationError("the id is empty; 'sandboxkit ls' shows the existing ones")
    first = [provider or _registry.default_name()]
    names = first if provider else list(dict.fromkeys([*first, *_configured.names()]))
    for some in (first, names[1:]):
        found, _ = await _providers.query(some, lambda each: _one(each, given))
        if hits := [info for info in found.values() if info is not None]:
            return _only(given, hits)
    listed, silent = await _providers.query(names, _all)
    hits = [info for infos in listed.values() for info in infos if _begins(info.id, given)]
    if not hits:
        if not listed and provider:
            raise silent[provider]
        where = f" at {', '.join(listed)}" if listed else ""
        raise SandboxNotFoundError(
            f"no sandbox {given!r}{where}; it may have ended{_failures(silent)}"
        )
    if silent and len(hits) == 1:
        raise ConfigurationError(
            f"{given!r} may match other sandboxes{_failures(silent)}: write {hits[0].id}, or "
            f"-p {hits[0].provider}"
        )
    return _only(given, hits)


async def _one(provider: Provider, given: str) -> SandboxInfo | None:
    try:
        return await provider.box(given).info()
    except SandboxNotFoundError:
        return None


async def _all(provider: Provider) -> list[SandboxInfo]:
    return [info async for info in provider.list({})]


def _begins(sandbox_id: str, given: str) -> bool:
    return sandbox_id.startswith(given) or _KIND.sub("", sandbox_id, count=1).startswith(given)


def _only(given: str, hits: list[SandboxInfo]) -> SandboxInfo:
    if len(hits) == 1:
        return hits[0]
    shown = ", ".join(f"{info.id} ({info.provider})" for info in hits[:8])
    more = ", ..." if len(hits) > 8 else ""
    raise ConfigurationError(
        f"{given!r} matches {len(hits)} sandboxes: {shown}{more}; give more of the id, or name the provider "
        "with -p"
    )


def _failures(silent: Mapping[str, SandboxError]) -> str:
    return "".join(f"; {name} could not be queried ({error})" for name, error in silent.items())

"""Queries one or several providers concurrently, for verbs that span providers."""

import argparse
import dataclasses
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TypeVar

import anyio

from sandboxkit import _registry
from sandboxkit.cli import _configured, _options
from sandboxkit.cli._text import safe_line
from sandboxkit.errors import (
    ConfigurationError,
    MissingExtraError,
    ProviderUnavailableError,
    SandboxError,
)
from sandboxkit.provider import Provider
from sandboxkit.types import Diagnosis, SandboxSpec

T = TypeVar("T")

_SECONDS = 15.0
_START_SECONDS = 5.0


async def chosen(args: argparse.Namespace) -> list[str]:
    """Return the names of the selected providers: one, or with `args.every` all that work here.

    Configured providers that do not work are reported on stderr. Raises ConfigurationError if the command
    line names a provider and selects all as well.
    """
    if not args.every:
        return [_options.provider_name(args)]
    if args.provider:
        raise ConfigurationError(
            f"--provider {args.provider} and the flag for all providers exclude each other"
        )
    names = _configured.names()
    found = await diagnoses(names)
    for name in names:
        if not found[name].available:
            reason = safe_line(found[name].detail or found[name].remedy)
            print(f"sandboxkit: skipped {name}: {reason}", file=sys.stderr)
    return [name for name in names if found[name].available]


async def query(
    names: Sequence[str], call: Callable[[Provider], Awaitable[T]]
) -> tuple[dict[str, T], dict[str, SandboxError]]:
    """Await `call` for each provider concurrently; return the results and the errors, by provider name.

    A provider that takes longer than 15 s gets a ProviderUnavailableError.
    """
    results: dict[str, T] = {}
    failures: dict[str, SandboxError] = {}

    async def each(name: str) -> None:
        try:
            with anyio.fail_after(_SECONDS):
                async with loaded(name) as provider:
                    results[name] = await call(provider)
        except SandboxError as error:
            failures[name] = error
        except TimeoutError:
            reason = f"no answer in {_SECONDS:.0f} s: check that its backend is up and reachable from here"
            failures[name] = ProviderUnavailableError(reason, provider=name)

    async with anyio.create_task_group() as group:
        for name in names:
            group.start_soon(each, name)
    return (
        {name: results[name] for name in names if name in results},
        {name: failures[name] for name in names if name in failures},
    )


async def listed(
    args: argparse.Namespace, call: Callable[[Provider], Awaitable[Sequence[T]]]
) -> tuple[list[T], dict[str, SandboxError]]:
    """Return what `call` lists at --provider, or else at all configured providers, and the errors of those
    that could not be queried. Raises the error of a provider that the command line names."""
    names = [args.provider] if args.provider else _configured.names()
    answers, silent = await query(names, call)
    if args.provider in silent:
        raise silent[args.provider]
    return [each for some in answers.values() for each in some], silent


def report(silent: Mapping[str, SandboxError]) -> int:
    """Print which providers could not be queried; return 1 if there are any, else 0."""
    for name, error in silent.items():
        print(f"sandboxkit: {name} could not be queried: {safe_line(str(error))}", file=sys.stderr)
    return 1 if silent else 0


async def diagnoses(names: Sequence[str]) -> dict[str, Diagnosis]:
    """Diagnose concurrently whether the providers work on this machine.

    A failure to load, an error and a timeout are reported as diagnoses too.
    """
    found, failures = await query(names, lambda provider: provider.diagnose())
    return {name: found[name] if name in found else _failed(failures[name]) for name in names}


async def tried(names: Sequence[str]) -> dict[str, Diagnosis]:
    """Diagnose as `diagnoses`, and start a sandbox on each provider of this machine that works."""
    found = await diagnoses(names)

    async def start(provider: Provider) -> str:
        if not provider.on_this_machine:
            return ""
        began = time.monotonic()
        with anyio.move_on_after(_START_SECONDS):
            await (await provider.create(SandboxSpec(lifetime=60.0))).delete()
            return f"a sandbox started and ended in {time.monotonic() - began:.1f} s"
        return f"no sandbox started and ended within {_START_SECONDS:.0f} s"

    said, failures = await query([name for name in names if found[name].available], start)
    for name, text in said.items():
        detail = "; ".join(filter(None, (found[name].detail, text)))
        found[name] = dataclasses.replace(found[name], detail=detail)
    for name, error in failures.items():
        detail = f"{found[name].detail}; no sandbox starts"
        remedy = "; ".join(filter(None, (str(error), found[name].remedy)))
        found[name] = Diagnosis(False, found[name].isolation, detail, remedy)
    return found


def _failed(error: SandboxError) -> Diagnosis:
    found = "does not work"
    if isinstance(error, ConfigurationError):
        missing = isinstance(error, MissingExtraError)
        found = "not installed" if missing else "not usable as it is configured"
    return Diagnosis(False, "", found, str(error))


@asynccontextmanager
async def loaded(name: str) -> AsyncIterator[Provider]:
    """Load a provider and close it at the end of the context."""
    provider = _registry.load(name)
    try:
        yield provider
    finally:
        await provider.aclose()

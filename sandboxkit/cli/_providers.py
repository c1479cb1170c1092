"""Queries one or several providers concurrently, for verbs that span providers."""

import argparse
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
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
from sandboxkit.types import Diagnosis

T = TypeVar("T")

_SECONDS = 15.0


async def chosen(args: argparse.Namespace) -> list[str]:
    """Return the provider named on the command line, or all working ones with the flag for all.

    Configured providers that cannot work are named on stderr.
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


async def ask(
    names: Sequence[str], question: Callable[[Provider], Awaitable[T]]
) -> tuple[dict[str, T], dict[str, SandboxError]]:
    """Query the providers concurrently; return the answers, and the errors of those without one.

    A provider that takes longer than 15 s counts as one that did not answer.
    """
    answers: dict[str, T] = {}
    failures: dict[str, SandboxError] = {}

    async def each(name: str) -> None:
        try:
            with anyio.fail_after(_SECONDS):
                async with loaded(name) as provider:
                    answers[name] = await question(provider)
        except SandboxError as error:
            failures[name] = error
        except TimeoutError:
            reason = (
                f"no answer in {_SECONDS:.0f} s: see whether its backend is up, and reachable here"
            )
            failures[name] = ProviderUnavailableError(reason, provider=name)

    async with anyio.create_task_group() as group:
        for name in names:
            group.start_soon(each, name)
    return (
        {name: answers[name] for name in names if name in answers},
        {name: failures[name] for name in names if name in failures},
    )


async def diagnoses(names: Sequence[str]) -> dict[str, Diagnosis]:
    """Diagnose concurrently whether the providers work on this machine.

    A failure to load, an error and a timeout are reported as diagnoses too.
    """
    found, failures = await ask(names, lambda provider: provider.diagnose())
    return {name: found[name] if name in found else _failed(failures[name]) for name in names}


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

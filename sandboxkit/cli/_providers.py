"""One provider or every one that works here, for the verbs that look across them."""

import argparse
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio

from sandboxkit import _registry
from sandboxkit.cli import _options
from sandboxkit.cli._text import safe_line
from sandboxkit.errors import ConfigurationError, SandboxError
from sandboxkit.provider import Provider
from sandboxkit.types import Diagnosis

_DIAGNOSIS_SECONDS = 15.0


async def chosen(args: argparse.Namespace) -> list[str]:
    """The provider named on the command line; with the flag for all, every one that works.

    Those that cannot work here are named on stderr.
    """
    if not args.every:
        return [_options.provider_name(args)]
    if args.provider:
        raise ConfigurationError(
            f"--provider {args.provider} and the flag for all providers exclude each other"
        )
    names = _registry.names()
    found = await diagnoses(names)
    for name in names:
        if not found[name].available:
            reason = safe_line(found[name].detail or found[name].remedy)
            print(f"sandboxkit: skipped {name}: {reason}", file=sys.stderr)
    return [name for name in names if found[name].available]


async def diagnoses(names: list[str]) -> dict[str, Diagnosis]:
    """Ask these providers, all at once, whether they can work here."""
    found: dict[str, Diagnosis] = {}

    async def ask(name: str) -> None:
        found[name] = await diagnose(name)

    async with anyio.create_task_group() as group:
        for name in names:
            group.start_soon(ask, name)
    return found


async def diagnose(name: str) -> Diagnosis:
    """Ask one provider; its failure to load, answer or answer in time is an answer too."""
    try:
        with anyio.fail_after(_DIAGNOSIS_SECONDS):
            async with loaded(name) as provider:
                return await provider.diagnose()
    except ConfigurationError as error:
        return Diagnosis(False, "", "not installed", str(error))
    except SandboxError as error:
        return Diagnosis(False, "", "does not work", str(error))
    except TimeoutError:
        return Diagnosis(
            False, "", f"no answer in {_DIAGNOSIS_SECONDS:.0f} s", "is its backend up?"
        )


@asynccontextmanager
async def loaded(name: str) -> AsyncIterator[Provider]:
    """Load a provider and release it at the end."""
    provider = _registry.load(name)
    try:
        yield provider
    finally:
        await provider.aclose()

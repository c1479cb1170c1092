"""Reads what a sandbox has used since its creation, for the ledger."""

from sandboxkit.providers._agent import requests
from sandboxkit.providers._agent.failures import CallError, ConnectionEndedError, SilentError
from sandboxkit.providers._agent.instance import Instance
from sandboxkit.types import Usage

__all__ = ["read_usage"]


async def read_usage(instance: Instance, processor_seconds: float | None, *, last: bool) -> Usage:
    """Return what is known of a sandbox's usage; figures that cannot be had now are None.

    `processor_seconds` is the host's count, if there is one. With `last` the agent is asked only without it.
    """
    moved = instance.moved()
    client = instance.client
    known = Usage(processor_seconds, None, None, None, *moved)
    if client is None or client.ended is not None or (last and processor_seconds is not None):
        return known
    try:
        stats = await requests.stats(client)
    except (ConnectionEndedError, SilentError, CallError):
        return known
    if processor_seconds is None:
        processor_seconds = (stats.used.processor + stats.used.agent) / 1e9
    return Usage(processor_seconds, None, stats.processes, stats.resident, *moved)

"""Awaits a call together with one that the first depends on."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

import anyio

__all__ = ["beside"]

_T = TypeVar("_T")
_LATE_SECONDS = 1.0
"""How long the one call may still take when the other has ended."""


async def beside(work: Coroutine[Any, Any, _T], needed: Coroutine[Any, Any, None]) -> _T:
    """Run two calls at once and return the result of `work`, or raise its error.

    If `needed` fails and `work` has not ended a second later, `work` is cancelled and the error of
    `needed` is raised. An error of `needed` is ignored if `work` ends all the same: only its answer was
    lost. Neither runs any more when this returns.
    """
    working, other = asyncio.create_task(work), asyncio.create_task(needed)
    try:
        await asyncio.wait([working, other], return_when=asyncio.FIRST_COMPLETED)
        failed = other.done() and other.exception() is not None
        await asyncio.wait([working], timeout=_LATE_SECONDS if failed else None)
        if not working.done():
            other.result()
        await asyncio.wait([other], timeout=_LATE_SECONDS)
        return working.result()
    finally:
        for task in (working, other):
            task.cancel()
        with anyio.CancelScope(shield=True):
            await asyncio.gather(working, other, return_exceptions=True)

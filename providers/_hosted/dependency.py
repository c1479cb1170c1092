"""Runs a call together with another call on which it depends."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

import anyio

__all__ = ["run_with_dependency"]

_T = TypeVar("_T")
_LATE_SECONDS = 1.0
"""How long (s) one call may still take after the other has failed or ended."""


async def run_with_dependency(
    work: Coroutine[Any, Any, _T], needed: Coroutine[Any, Any, None]
) -> _T:
    """Run two calls concurrently and return the result of `work`, or raise its error.

    `work` depends on `needed`. If `needed` fails and `work` has not ended a second later, `work` is
    cancelled and the error of `needed` raised. If `work` ends in spite of it, the error is ignored, because
    only the response of `needed` was lost. Both calls have ended when this returns.
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

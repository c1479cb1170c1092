"""Cancels the work of a request when its client disconnects."""

import asyncio
import contextlib
from collections.abc import Awaitable
from typing import TypeVar

from fastapi import HTTPException, Request

from sandboxkit.integrations.serve._job import Job

T = TypeVar("T")


async def while_connected(request: Request, work: Awaitable[T]) -> T:
    """Return the result of `work`. If the client disconnects, cancel it and raise HTTPException 499."""
    working = asyncio.ensure_future(work)

    async def watch() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass
        working.cancel()

    watching = asyncio.create_task(watch())
    try:
        return await working
    except asyncio.CancelledError:
        working.cancel()
        await asyncio.wait([working])
        if watching.done():
            raise HTTPException(499, "the client has disconnected") from None
        raise
    finally:
        watching.cancel()


async def whole(request: Request, job: Job[T]) -> list[T]:
    """Return all results of a job. The job is cancelled when all of its clients have disconnected."""

    async def collect() -> list[T]:
        async with contextlib.aclosing(job.follow()) as lines:
            return [line async for line in lines]

    return await while_connected(request, collect())

"""Work that ends with the client that asked for it."""

import asyncio
import contextlib
from collections.abc import Awaitable
from typing import TypeVar

from fastapi import HTTPException, Request

from sandboxkit.integrations.serve._job import Job

T = TypeVar("T")


async def while_connected(request: Request, work: Awaitable[T]) -> T:
    """Return the result of `work`, which is cancelled if the client goes away."""
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
            raise HTTPException(499, "the client has gone") from None
        raise
    finally:
        watching.cancel()


async def whole(request: Request, job: Job[T]) -> list[T]:
    """Return all results of a job, which is cancelled if all its clients go away."""

    async def collect() -> list[T]:
        async with contextlib.aclosing(job.follow()) as lines:
            return [line async for line in lines]

    return await while_connected(request, collect())

"""Cancels the work of a request when its client disconnects."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable
from typing import Any, TypeVar

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


async def closing(
    text: AsyncGenerator[T, None], *sources: AsyncGenerator[Any, None]
) -> AsyncGenerator[T, None]:
    """Yield the pieces of a response. In the end, also of a client that left, close what they are made of."""
    async with contextlib.AsyncExitStack() as stack:
        for each in (*sources, text):
            await stack.enter_async_context(contextlib.aclosing(each))
        async for piece in text:
            yield piece


async def whole(request: Request, job: Job[T]) -> list[T]:
    """Return all results of a job. The job is cancelled when all of its clients have disconnected."""

    async def collect() -> list[T]:
        async with contextlib.aclosing(job.follow()) as lines:
            return [line async for line in lines]

    return await while_connected(request, collect())

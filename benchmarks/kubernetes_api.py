"""A client that sends many concurrent requests to the test cluster's API server and measures their cost."""

import asyncio
import contextlib
import json
import secrets
import statistics
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Self, TypeVar

import aiohttp

from tests.kubernetes.cluster import Cluster, find_cluster

AT_ONCE = 32
"""Requests in flight."""

# Any: manifests and responses are JSON.
Json = dict[str, Any]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Use:
    """The CPU time and memory that a Kubernetes program has used so far."""

    cpu: float
    memory_mb: float


def measured(work: Callable[["Api"], Awaitable[None]]) -> int:
    """Do `work` with a client of the test cluster; return the program's exit status."""
    cluster = find_cluster()
    if isinstance(cluster, str):
        print(cluster, file=sys.stderr)
        return 1

    async def run() -> None:
        async with Api.open(cluster) as api:
            await work(api)

    asyncio.run(run())
    return 0


class Api:
    """A client of the API server for many concurrent requests. Raises RuntimeError for error statuses."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self.session = session
        self.pods = ""
        """The path of the namespace's pods."""

    @classmethod
    @contextlib.asynccontextmanager
    async def open(cls, cluster: Cluster) -> AsyncIterator[Self]:
        """Run the measurements in a new namespace, and delete the namespace with its contents."""
        connector = aiohttp.TCPConnector(limit=0, ssl=cluster.tls)
        headers = {"Authorization": f"Bearer {cluster.token}"}
        session = aiohttp.ClientSession(
            cluster.server,
            connector=connector,
            headers=headers,
            timeout=aiohttp.ClientTimeout(total=None),
        )
        api = cls(session)
        namespace = f"scale-{secrets.token_hex(4)}"
        with cluster.held():
            async with session:
                await api.call("POST", "/api/v1/namespaces", {"metadata": {"name": namespace}})
                api.pods = f"/api/v1/namespaces/{namespace}/pods"
                try:
                    yield api
                finally:
                    await api.call("DELETE", f"/api/v1/namespaces/{namespace}")

    async def call(
        self,
        method: str,
        path: str,
        body: Json | None = None,
        *,
        query: Mapping[str, str] | None = None,
        content: str = "application/json",
        accept: str = "application/json",
        allowed: Iterable[int] = (),
    ) -> tuple[int, bytes]:
        """Send a request; return its status and body. Raises RuntimeError for errors not in `allowed`."""
        async with self.session.request(
            method,
            path,
            data=None if body is None else json.dumps(body),
            params=query,
            headers={"Content-Type": content, "Accept": accept},
        ) as answer:
            text = await answer.read()
            if answer.status >= 300 and answer.status not in allowed:
                raise RuntimeError(f"{method} {path}: {answer.status} {text[:500]!r}")
            return answer.status, text

    async def patch(self, path: str, body: Json, *, allowed: Iterable[int] = ()) -> int:
        """Merge `body` into an object; return the status."""
        merge = "application/merge-patch+json"
        return (await self.call("PATCH", path, body, content=merge, allowed=allowed))[0]

    async def use(self, path: str = "/metrics") -> Use:
        """Read the use from a Kubernetes program's metrics, by default the API server's."""
        _, body = await self.call("GET", path, accept="*/*")
        found = dict(line.rsplit(" ", 1) for line in body.decode().splitlines() if line[0] != "#")
        return Use(
            float(found["process_cpu_seconds_total"]),
            float(found["process_resident_memory_bytes"]) / 1e6,
        )


async def all_of(works: Iterable[Callable[[], Awaitable[T]]], at_once: int = AT_ONCE) -> list[T]:
    """Run all `works`, `at_once` at a time; return their results."""
    limit = asyncio.Semaphore(at_once)

    async def one(work: Callable[[], Awaitable[T]]) -> T:
        async with limit:
            return await work()

    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(one(work)) for work in works]
    return [task.result() for task in tasks]


async def lines(answer: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    """Yield the lines of a streamed response, without a limit on their length."""
    rest = b""
    async for part in answer.content.iter_any():
        *whole, rest = (rest + part).split(b"\n")
        for line in whole:
            yield line


@contextlib.asynccontextmanager
async def timed(
    api: Api, what: str, count: int, sizes: Callable[[], tuple[int, int]] | None = None
) -> AsyncIterator[None]:
    """Print how long the `with` block took, and the API server's CPU time per item of `count`.

    `sizes` returns the numbers of pods and bytes to print.
    """
    cpu, started = (await api.use()).cpu, time.perf_counter()
    yield
    took = time.perf_counter() - started
    cpu = (await api.use()).cpu - cpu
    line = f"{what}: {took:.2f} s, {count / took:.0f}/s"
    if sizes:
        items, size = sizes()
        line = f"{what}: {took / count * 1000:.0f} ms, {items} pods, {size / 1e6:.2f} MB"
    print(f"{line}; API server {cpu / count * 1000:.1f} ms each", flush=True)


def spread(seconds: list[float]) -> str:
    """Return the median and the 99th percentile as text."""
    ordered = sorted(seconds)
    late = ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)]
    return f"{statistics.median(ordered) * 1000:.1f} ms (99 %: {late * 1000:.1f} ms)"

"""Send many commands through `sandboxkit serve`, and print the server's resident memory after each tenth.

    python -m benchmarks.serve_memory [--provider local] [--requests 10000]

All commands run `true` in one sandbox of the service, 32 at a time.
"""

import argparse
import asyncio
import json
import os
from collections import Counter
from typing import Any

import httpx

from benchmarks.serve_load import each, resident_mb, served

AT_A_TIME = 32


async def run(provider: str, requests: int) -> dict[str, Any]:
    """Send the commands and return the figures."""
    statuses: Counter[int] = Counter()
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=AT_A_TIME)
    with served(provider, 0) as (url, pid):
        async with httpx.AsyncClient(base_url=url, timeout=600, limits=limits) as client:
            made = (await client.post("/v1/sandboxes", json={})).json()["id"]

            async def one(_: int) -> None:
                body = {"argv": ["true"]}
                answer = await client.post(f"/v1/sandboxes/{made}/exec", json=body)
                statuses[answer.status_code] += 1

            figures = [resident_mb(pid)]
            for _ in range(10):
                await each(range(requests // 10), AT_A_TIME, one)
                figures.append(resident_mb(pid))
            await client.delete(f"/v1/sandboxes/{made}")
    return {"resident_mb": figures, "statuses": dict(statuses)}


def main() -> None:
    """Run the benchmark and print the figures."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--provider", default="local")
    parser.add_argument("--requests", type=int, default=10_000)
    args = parser.parse_args()
    load = round(os.getloadavg()[0], 1)
    print(json.dumps({"load_before": load} | asyncio.run(run(args.provider, args.requests))))


if __name__ == "__main__":
    main()

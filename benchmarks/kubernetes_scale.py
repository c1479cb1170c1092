"""Measures the load of thousands of sandboxes on a cluster's API server, with fake pods.

The cluster is that of scripts/kube.sh, or of SANDBOXKIT_KUBECONFIG (use a test cluster: this loads it).
Run from the root of the repository:

    python -m benchmarks.kubernetes_scale [--pods 2000]

The pods are bound to fake nodes and marked as running through the API. Each line has the API server's CPU
time, in total or per request; a machine with more cores serves proportionally more requests.
"""

import argparse
import asyncio
import json
import random
import sys
import time
from collections import Counter
from functools import partial

from benchmarks.fake_kubelet import PODS_A_NODE, nodes, pod, running
from benchmarks.kubernetes_api import AT_ONCE, Api, Json, all_of, lines, measured, spread, timed

METADATA = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
CLAIMED = "example.com/claimed"
RUNS = 20
"""Number of runs that share the cluster; each labels its pods."""
POOL = 200
CHANGES, SECONDS = 50, 10.0
"""Number of pod changes per second while watches are measured, and the duration in seconds."""


def main() -> int:
    parser = argparse.ArgumentParser(
        description="Measure the load of thousands of pods on an API server."
    )
    parser.add_argument("--pods", type=int, default=2000)
    args = parser.parse_args()

    async def work(api: Api) -> None:
        async with nodes(api, -(-args.pods // PODS_A_NODE)) as names:
            await pods(api, names, args.pods)

    return measured(work)


async def pods(api: Api, nodes: list[str], count: int) -> None:
    """Create `count` pods, measure the operations on them, and delete them."""
    names = [f"sandbox-{number:05}" for number in range(count)]

    def create(number: int) -> Json:
        labels = {"app": "sandbox", "run": str(number % RUNS)}
        return pod(names[number], nodes[number % len(nodes)], labels)

    numbers = range(count)
    async with timed(api, f"create {count} pods, {AT_ONCE} at a time", count):
        await all_of([partial(api.call, "POST", api.pods, create(n)) for n in numbers])
    async with timed(api, "mark them as running", count):
        works = [partial(api.patch, f"{api.pods}/{names[n]}/status", running(n)) for n in numbers]
        await all_of(works)
    _, stored = await api.call("GET", f"{api.pods}/{names[0]}")
    print(f"a pod is {len(stored)} bytes of JSON; API server {(await api.use()).memory_mb:.0f} MB")
    await lists(api, names[0])
    for watchers in (1, RUNS, 10 * RUNS):
        await watches(api, names, watchers)
    for claimers, shuffled in ((1, False), (2, False), (8, False), (8, True)):
        await claims(api, claimers, shuffled=shuffled)
    await sweeps(api, names)


async def lists(api: Api, one: str) -> None:
    """Measure all ways to list pods; `one` is the name of an existing pod."""
    everything = {"labelSelector": "app=sandbox"}
    own = {"labelSelector": "run=3"}
    cached = {"resourceVersion": "0"}
    for what, query, accept in (
        ("all", everything, "application/json"),
        ("all, from the watch cache", everything | cached, "application/json"),
        ("all, 500 a page", everything | {"limit": "500"}, "application/json"),
        ("all, only metadata", everything, METADATA),
        (f"a run's, 1 in {RUNS}", own, "application/json"),
        (f"a run's, 1 in {RUNS}, from the watch cache", own | cached, "application/json"),
        ("one by name", {"fieldSelector": f"metadata.name={one}"}, "application/json"),
    ):
        sizes: list[tuple[int, int]] = []
        async with timed(api, f"list {what}", 5, lambda sizes=sizes: sizes[0]):  # type: ignore[misc]  # a lambda's default has no type
            for _ in range(5):
                sizes.append(await paged(api, query, accept))
    async with timed(api, "get one", 200):
        await all_of([partial(api.call, "GET", f"{api.pods}/{one}") for _ in range(200)])


async def paged(api: Api, query: dict[str, str], accept: str) -> tuple[int, int]:
    """List pods, page by page if the query has a limit; return the numbers of items and bytes."""
    items = size = 0
    more = ""
    while True:
        asked = query | ({"continue": more} if more else {})
        _, body = await api.call("GET", api.pods, query=asked, accept=accept)
        page = json.loads(body)
        items, size = items + len(page["items"]), size + len(body)
        more = page["metadata"].get("continue", "")
        if not more:
            return items, size


async def watches(api: Api, names: list[str], count: int) -> None:
    """Measure the delay of `count` watches, each of one run's pods, while pods change."""
    sent: dict[str, float] = {}
    lags: list[float] = []
    ready = asyncio.Semaphore(0)
    total = int(CHANGES * SECONDS)
    version = json.loads((await api.call("GET", api.pods, query={"limit": "1"}))[1])["metadata"]

    async def watch(run: int) -> None:
        query = {"watch": "true", "labelSelector": f"run={run}"}
        query["resourceVersion"] = version["resourceVersion"]
        coming = sum(number % len(names) % RUNS == run for number in range(total))
        async with api.session.get(api.pods, params=query) as answer:
            ready.release()
            async for line in lines(answer):
                change = json.loads(line)["object"]["metadata"]["annotations"].get("change")
                if change in sent:
                    lags.append(time.perf_counter() - sent[change])
                    coming -= 1
                if not coming:
                    return

    async def change(number: int) -> None:
        mark = f"{count}-{number}"
        body = {"metadata": {"annotations": {"change": mark}}}
        sent[mark] = time.perf_counter()
        await api.patch(f"{api.pods}/{names[number % len(names)]}", body)

    async with asyncio.timeout(SECONDS + 60), asyncio.TaskGroup() as group:
        for number in range(count):
            group.create_task(watch(number % RUNS))
        for _ in range(count):
            await ready.acquire()
        async with timed(api, f"{count} watches while {CHANGES} pods a second change", total):
            started = time.perf_counter()
            async with asyncio.TaskGroup() as changing:
                for number in range(total):
                    await asyncio.sleep(started + number / CHANGES - time.perf_counter())
                    changing.create_task(change(number))
    print(f"    {len(lags)} events received, {spread(lags)} after the request for the change")


async def claims(api: Api, claimers: int, *, shuffled: bool) -> None:
    """Measure how several clients claim pods of a pool of 200 concurrently.

    Checks that each pod is claimed by exactly one client. `shuffled` randomises each client's order.
    """
    order = "a random" if shuffled else "the same"
    mark = f"by-{claimers}-{shuffled}"
    pool = {"labelSelector": f"run in (0,1,2,3),{CLAIMED}!={mark}", "limit": str(POOL)}
    latencies: list[float] = []
    taken: list[list[str]] = [[] for _ in range(claimers)]

    async def claim(number: int) -> None:
        _, text = await api.call("GET", api.pods, query=pool)
        found = [item["metadata"] for item in json.loads(text)["items"]]
        if shuffled:
            random.Random(number).shuffle(found)
        for metadata in found:
            labels = {CLAIMED: mark, "example.com/claimer": str(number)}
            body = {"metadata": {"resourceVersion": metadata["resourceVersion"], "labels": labels}}
            started = time.perf_counter()
            status = await api.patch(f"{api.pods}/{metadata['name']}", body, allowed=(409,))
            latencies.append(time.perf_counter() - started)
            if status == 200:
                taken[number].append(metadata["name"])
            if len(taken[number]) == POOL // claimers:
                return

    what = f"{claimers} claim {POOL} pods in {order} order"
    async with timed(api, what, POOL), asyncio.TaskGroup() as group:
        for number in range(claimers):
            group.create_task(claim(number))
    every = Counter(name for names in taken for name in names)
    assert set(every.values()) == {1}, "a pod was claimed twice"
    assert len(every) == POOL, "a pod was left, or there are too few: --pods 1000 or more"
    query = {"labelSelector": f"{CLAIMED}={mark}"}
    _, text = await api.call("GET", api.pods, query=query)
    owners = {
        item["metadata"]["name"]: int(item["metadata"]["labels"]["example.com/claimer"])
        for item in json.loads(text)["items"]
    }
    assert owners == {name: n for n, names in enumerate(taken) for name in names}
    refused = len(latencies) - len(every)
    print(
        f"    {len(every)} claimed, none twice, {refused} conflicts; a request {spread(latencies)}"
    )


async def sweeps(api: Api, names: list[str]) -> None:
    """Mark all pods as finished, delete half of them by name and the others with one request."""
    done = {"status": {"phase": "Succeeded"}}
    async with timed(api, "mark them as finished", len(names)):
        await all_of([partial(api.patch, f"{api.pods}/{name}/status", done) for name in names])
    half = names[::2]
    now = {"gracePeriodSeconds": 0}
    async with timed(api, f"delete {len(half)} by name, {AT_ONCE} at a time", len(half)):
        works = [partial(api.call, "DELETE", f"{api.pods}/{name}", dict(now)) for name in half]
        await all_of(works)
    async with timed(api, "delete the others with one request", len(names) - len(half)):
        await api.call("DELETE", api.pods, now, query={"labelSelector": "app=sandbox"})


if __name__ == "__main__":
    sys.exit(main())

"""Measures how fast a node starts pods, and the cost of exec streams that are open and mostly idle.

The cluster is that of scripts/kube.sh, or of SANDBOXKIT_KUBECONFIG (use a test cluster: this loads it).
Run from the root of the repository:

    python -m benchmarks.kubernetes_node [--pods 30] [--streams 200]

The pods have the image sandboxkit/python:3.11 and sleep; the streams, each with a `cat`, go to one.
"""

import argparse
import asyncio
import json
import sys
import time
from collections.abc import Callable
from functools import partial

import aiohttp

from benchmarks.kubernetes_api import Api, Json, all_of, lines, measured, spread, timed

IDLE = 20.0
"""Seconds for which the streams are left idle."""
MEGABYTES, LINES = 200, 10
PROTOCOLS = ("v4.channel.k8s.io",)
KUBELET = "/api/v1/nodes/node1/proxy/metrics"
SPEC: Json = {
    "containers": [
        {"name": "main", "image": "sandboxkit/python:3.11", "command": ["sleep", "3600"]}
    ],
    "terminationGracePeriodSeconds": 1,
    "restartPolicy": "Never",
    "automountServiceAccountToken": False,
}


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure a node's pod starts and exec streams.")
    parser.add_argument("--pods", type=int, default=30)
    parser.add_argument("--streams", type=int, default=200)
    args = parser.parse_args()

    async def work(api: Api) -> None:
        accounts = api.pods.removesuffix("pods") + "serviceaccounts"
        await wait_until(api, accounts, "default", lambda _: True)
        await starts(api, args.pods)
        await streams(api, args.streams)
        await output(api)
        await api.call("DELETE", f"{api.pods}/pod-0", {"gracePeriodSeconds": 0})

    return measured(work)


async def starts(api: Api, count: int) -> None:
    """Create `count` pods concurrently and wait until all run; then delete all but the first."""

    async def start(number: int) -> None:
        name = f"pod-{number}"
        await api.call("POST", api.pods, {"metadata": {"name": name}, "spec": SPEC})
        await wait_until(api, api.pods, name, lambda pod: pod["status"].get("phase") == "Running")

    async with timed(api, f"start {count} pods on one node, all at once", count):
        cpu = (await api.use(KUBELET)).cpu
        await all_of([partial(start, number) for number in range(count)], count)
        cpu = (await api.use(KUBELET)).cpu - cpu
    print(f"    kubelet {cpu / count * 1000:.0f} ms each")
    version = json.loads((await api.call("GET", api.pods))[1])["metadata"]["resourceVersion"]
    query = {"watch": "true", "resourceVersion": version}
    left = count - 1
    watched = api.session.get(api.pods, params=query)
    what = f"delete {left} of them, all at once"
    async with timed(api, what, left), asyncio.timeout(120), watched as answer:
        names = [f"{api.pods}/pod-{number}" for number in range(1, count)]
        await all_of([partial(api.call, "DELETE", name) for name in names], count)
        async for line in lines(answer):
            left -= json.loads(line)["type"] == "DELETED"
            if not left:
                return


async def streams(api: Api, count: int) -> None:
    """Open `count` exec streams to one pod, leave them idle, then use them concurrently."""
    name = f"{api.pods}/pod-0"
    before = [await api.use(), await api.use(KUBELET)]
    query = {"command": "cat", "stdin": "1", "stdout": "1"}
    opened: list[aiohttp.ClientWebSocketResponse] = []

    async def connect() -> None:
        stream = await api.session.ws_connect(f"{name}/exec", params=query, protocols=PROTOCOLS)
        await echo(stream)
        opened.append(stream)

    async with timed(api, f"open {count} exec streams, 8 at a time", count):
        await all_of([connect] * count, 8)
    idle = [await api.use(), await api.use(KUBELET)]
    for what, first, then in zip(("API server", "kubelet"), before, idle, strict=True):
        growth = (then.memory_mb - first.memory_mb) * 1000 / count
        print(f"    {what}: {growth:.0f} KB and {then.cpu - first.cpu:.2f} s for {count} streams")
    for at_once in (1, count):
        async with timed(api, f"lines there and back, {at_once} at once", count * LINES):
            rounds = await all_of([partial(echoes, each) for each in opened], at_once)
        print(f"    {spread([latency for each in rounds for latency in each])}")
    started, cpu = time.perf_counter(), (await api.use()).cpu
    await asyncio.sleep(IDLE)
    share = ((await api.use()).cpu - cpu) / (time.perf_counter() - started)
    print(f"    idle, the API server uses {share:.3f} cores")
    await all_of([each.close for each in opened])


async def echoes(stream: aiohttp.ClientWebSocketResponse) -> list[float]:
    """Return the round-trip times in seconds of several lines to the program, one after another."""
    return [await echo(stream) for _ in range(LINES)]


async def echo(stream: aiohttp.ClientWebSocketResponse) -> float:
    """Return the round-trip time in seconds of a line; channel 0 is the program's input, 1 its output."""
    started = time.perf_counter()
    await stream.send_bytes(b"\0hello\n")
    async for message in stream:
        if message.type is aiohttp.WSMsgType.BINARY and message.data == b"\1hello\n":
            return time.perf_counter() - started
    raise RuntimeError("the exec stream ended")


async def output(api: Api) -> None:
    """Measure the throughput of a command's output."""
    query = [("command", each) for each in ("head", "-c", str(MEGABYTES << 20), "/dev/zero")]
    query.append(("stdout", "1"))
    size = 0
    connected = api.session.ws_connect(f"{api.pods}/pod-0/exec", params=query, protocols=PROTOCOLS)
    what = f"{MEGABYTES} MiB of output, each MiB"
    async with timed(api, what, MEGABYTES), connected as stream:
        async for message in stream:
            if message.type is aiohttp.WSMsgType.BINARY and message.data[:1] == b"\1":
                size += len(message.data) - 1
    assert size == MEGABYTES << 20


async def wait_until(api: Api, path: str, name: str, condition: Callable[[Json], bool]) -> None:
    """Watch an object, which may not exist yet, until the condition holds."""
    query = {"watch": "true", "fieldSelector": f"metadata.name={name}"}
    async with asyncio.timeout(60), api.session.get(path, params=query) as answer:
        async for line in lines(answer):
            if condition(json.loads(line)["object"]):
                return


if __name__ == "__main__":
    sys.exit(main())

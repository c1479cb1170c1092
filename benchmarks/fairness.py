"""Compares the latency of `exec("true")` during bulk transfers of its sandbox with that without any.

The cases alternate in each round. In a case the transfers start first, then commands run one after
another, then the transfers run alone for a second, which gives their rate. A transfer is a file read,
a file written, a command's output, a connection whose bytes another process reads, or an upload: a
connection to which another process writes.

On a busy machine commands are slow because transfers and other programs use the processors. Therefore the same
transfers also run in another sandbox: `times_other` is the latency beside transfers of the command's own sandbox
divided by that beside transfers of the other one, which use the same processors and another link. `waited_ms` is
how long this process's threads were ready to run during a command and had no processor.

    python -m benchmarks.fairness [--provider local docker] [--streams 1 8] [--rounds 5] [--json]

With `--through-daemon` the docker provider connects through the daemon, as it does for users other than root.
"""

import argparse
import asyncio
import json
import os
import statistics
import sys
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from unittest import mock

from sandboxkit import Sandbox, Session
from sandboxkit.providers.docker._direct import DirectConnections

IMAGE = "sandboxkit/python:3.11"
FILE_BYTES = 8 << 20
PRINTED_BYTES = 32 << 20
COMMANDS = 20
"""Number of commands per case and round."""
RATE_SECONDS = 1.0
"""Seconds for which the transfers run alone after the commands, to measure their rate."""
SERVER = """
import socket, threading
def send(to):
    block = bytes(1 << 18)
    while True:
        to.sendall(block)
def discard(source):
    into = bytearray(1 << 18)
    while source.recv_into(into):
        pass
def carry(work, connection):
    try:
        work(connection)
    except OSError:
        pass
    connection.close()
def serve(listener, work):
    while True:
        threading.Thread(target=carry, args=(work, listener.accept()[0]), daemon=True).start()
for port, work in ((8000, send), (8001, discard)):
    listener = socket.create_server(("127.0.0.1", port))
    threading.Thread(target=serve, args=(listener, work)).start()
print("listening", flush=True)
"""
READER = """
import socket, sys
into, total = bytearray(1 << 18), 0
with socket.create_connection(("127.0.0.1", int(sys.argv[1]))) as source:
    while count := source.recv_into(into):
        total += count
        if total >= 1 << 22:
            print(total, flush=True)
            total = 0
"""
WRITER = """
import socket, sys
block, total = bytes(1 << 18), 0
with socket.create_connection(("127.0.0.1", int(sys.argv[1]))) as to:
    while True:
        to.sendall(block)
        total += len(block)
        if total >= 1 << 22:
            print(total, flush=True)
            total = 0
"""


@dataclass
class Transfers:
    """Counts the bytes that bulk transfers of one kind have delivered."""

    arrived: int = 0
    flowing: asyncio.Event = field(default_factory=asyncio.Event)

    def count(self, size: int) -> None:
        """Add `size` bytes that have arrived."""
        self.arrived += size
        self.flowing.set()


Kind = Callable[[Sandbox, Transfers], Coroutine[object, object, None]]
"""A coroutine function that transfers bytes until it is cancelled."""


async def reads(sandbox: Sandbox, transfers: Transfers) -> None:
    """Read a file repeatedly."""
    while True:
        transfers.count(len(await sandbox.read_file("/tmp/bulk")))


async def writes(sandbox: Sandbox, transfers: Transfers) -> None:
    """Replace a file repeatedly."""
    data = bytes(FILE_BYTES)
    name = f"/tmp/written-{id(asyncio.current_task())}"
    try:
        while True:
            await sandbox.write_file(name, data)
            transfers.count(len(data))
    finally:
        await sandbox.remove(name)


async def prints(sandbox: Sandbox, transfers: Transfers) -> None:
    """Run a command with much output, repeatedly."""
    while True:
        done = await sandbox.exec(["head", "-c", str(PRINTED_BYTES), "/dev/zero"])
        assert done.returncode == 0, done.stderr
        transfers.count(PRINTED_BYTES)


async def tunnels(sandbox: Sandbox, transfers: Transfers) -> None:
    """Read from a server in the sandbox through `expose`, in a separate process."""
    await _through(sandbox, transfers, 8000, READER)


async def uploads(sandbox: Sandbox, transfers: Transfers) -> None:
    """Send to a server in the sandbox through `expose`, from a separate process."""
    await _through(sandbox, transfers, 8001, WRITER)


async def _through(sandbox: Sandbox, transfers: Transfers, port: int, program: str) -> None:
    async with await sandbox.expose(port) as way:
        peer = await asyncio.create_subprocess_exec(
            sys.executable, "-c", program, str(way.port), stdout=asyncio.subprocess.PIPE
        )
        assert peer.stdout is not None
        try:
            while line := await peer.stdout.readline():
                transfers.count(int(line))
        finally:
            peer.kill()
            await peer.wait()


KINDS: dict[str, Kind] = {
    "read": reads,
    "write": writes,
    "output": prints,
    "tunnel": tunnels,
    "upload": uploads,
}


@asynccontextmanager
async def running(kind: Kind, count: int, sandbox: Sandbox) -> AsyncIterator[Transfers]:
    """Start `count` transfers, yield when the first bytes have arrived, and cancel them afterwards."""
    transfers = Transfers()
    tasks = [asyncio.create_task(kind(sandbox, transfers)) for _ in range(count)]
    try:
        await transfers.flowing.wait()
        yield transfers
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def waited() -> float:
    """Return the seconds for which the threads of this process have waited for a processor."""
    threads = Path("/proc/self/task").glob("*/schedstat")
    return sum(int(each.read_text().split()[1]) for each in threads) / 1e9


@dataclass
class Case:
    """The measurements of one kind and number of transfers."""

    times: list[float] = field(default_factory=list)
    waits: list[float] = field(default_factory=list)
    rates: list[float] = field(default_factory=list)


async def timed(sandbox: Sandbox) -> Case:
    """Run several commands one after another, and measure their seconds."""
    case = Case()
    for _ in range(COMMANDS):
        before, began = waited(), time.perf_counter()
        done = await sandbox.exec(["true"])
        case.times.append(time.perf_counter() - began)
        case.waits.append(waited() - before)
        assert done.returncode == 0, done.stderr
    return case


async def measured(
    provider: str, kinds: list[str], streams: list[int], rounds: int
) -> list[dict[str, object]]:
    """Return a row for commands without transfers, and one for each kind and number of transfers."""
    own = [("alone", 0), *((kind, count) for kind in kinds for count in streams)]
    cases = [(*case, other) for case in own for other in (False, True)[: 1 + bool(case[1])]]
    results = {case: Case() for case in cases}
    async with AsyncExitStack() as stack:
        session = await stack.enter_async_context(Session(provider))
        sandboxes = [await stack.enter_async_context(session.sandbox()) for _ in range(2)]
        for each in sandboxes:
            await each.write_file("/tmp/bulk", bytes(FILE_BYTES))
            server = each.exec(["python3", "-c", SERVER])
            await anext(aiter(server.stdout.lines()))
        for number in range(rounds + 1):
            for case in cases:
                name, count, other = case
                if not count:
                    found = await timed(sandboxes[0])
                else:
                    async with running(KINDS[name], count, sandboxes[other]) as transfers:
                        found = await timed(sandboxes[0])
                        before, began = transfers.arrived, time.perf_counter()
                        await asyncio.sleep(RATE_SECONDS)
                        took = time.perf_counter() - began
                        found.rates.append((transfers.arrived - before) / took / 1e6)
                if number:
                    for field_name, values in vars(found).items():
                        getattr(results[case], field_name).extend(values)
    medians = {case: statistics.median(result.times) for case, result in results.items()}
    rows: list[dict[str, object]] = []
    for name, count in own:
        case, result = (name, count, False), results[name, count, False]
        beside_other = medians.get((name, count, True), medians[case])
        rows.append(
            {
                "provider": provider,
                "beside": name,
                "streams": count,
                "median_ms": round(medians[case] * 1e3, 2),
                "p90_ms": round(statistics.quantiles(result.times, n=10)[-1] * 1e3, 2),
                "times_alone": round(medians[case] / medians[cases[0]], 2),
                "times_other": round(medians[case] / beside_other, 2),
                "waited_ms": round(statistics.median(result.waits) * 1e3, 2),
                "mb_per_s": round(statistics.median(result.rates)) if count else 0,
            }
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Compare commands with and without bulk transfers."
    )
    parser.add_argument("--provider", nargs="+", default=["local", "docker"])
    parser.add_argument("--kind", nargs="+", default=list(KINDS), choices=list(KINDS))
    parser.add_argument("--streams", nargs="+", type=int, default=[1, 8])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--through-daemon", action="store_true", help="no direct connections")
    parser.add_argument("--json", action="store_true", help="print one JSON object per line")
    args = parser.parse_args()
    if args.through_daemon:
        mock.patch.object(DirectConnections, "_possible", return_value=False).start()
    os.environ.setdefault("SANDBOXKIT_DOCKER_IMAGE", IMAGE)
    for provider in args.provider:
        rows = asyncio.run(measured(provider, args.kind, args.streams, args.rounds))
        if not args.json:
            print("  ".join(f"{name:>11}" for name in rows[0]))
        for row in rows:
            print(json.dumps(row) if args.json else "  ".join(f"{v!s:>11}" for v in row.values()))


if __name__ == "__main__":
    main()

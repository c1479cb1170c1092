"""What the daytona provider adds to Daytona's own SDK, both against the emulator in the same run.

Run from the root of the repository; neither account nor network is needed:

    python -m benchmarks.hosted_daytona [--check] [--rounds 40]
"""

import argparse
import asyncio
import statistics
import sys
import threading
import time
from collections.abc import Coroutine
from typing import Any

from daytona import AsyncDaytona, AsyncSandbox, CreateSandboxFromSnapshotParams

from benchmarks.comparisons import interleaved, near
from sandboxkit import Sandbox, Session
from tests.daytona.server import emulator

MANY, SLEEP = 60, "0.2"
RATIO, SECONDS = 1.3, 1.5


class Bare:
    """The SDK alone, on an event loop that keeps running."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()
        self._sandbox: AsyncSandbox = self._wait(self._create())

    async def _create(self) -> AsyncSandbox:
        self._daytona = AsyncDaytona()
        return await self._daytona.create(
            CreateSandboxFromSnapshotParams(network_block_all=True, ttl_minutes=10)
        )

    def run(self) -> None:
        """One command."""
        assert self._wait(self._sandbox.process.exec("/bin/echo hello")).result == "hello\n"

    def run_many(self) -> float:
        """Seconds for many commands at a time, as `many` does it."""

        async def run() -> None:
            await asyncio.gather(
                *(self._sandbox.process.exec(f"sleep {SLEEP}") for _ in range(MANY))
            )

        started = time.perf_counter()
        self._wait(run())
        return time.perf_counter() - started

    def close(self) -> None:
        self._wait(self._daytona.delete(self._sandbox))
        self._wait(self._daytona.close())  # type: ignore[no-untyped-call]  # the SDK's
        self._loop.call_soon_threadsafe(self._loop.stop)

    def _wait(self, work: Coroutine[Any, Any, Any]) -> Any:  # Any: of whatever the SDK returns
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(120)


def many(sandbox: Sandbox) -> float:
    """Seconds for many commands at a time, each of which sleeps."""
    started = time.perf_counter()
    processes = [sandbox.exec(["sleep", SLEEP]) for _ in range(MANY)]
    assert {process.result(60).returncode for process in processes} == {0}
    return time.perf_counter() - started


def main() -> int:
    parser = argparse.ArgumentParser(description="Compare the daytona provider with Daytona's SDK.")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a target is missed")
    parser.add_argument("--rounds", type=int, default=40)
    args = parser.parse_args()
    with emulator(), Session("daytona") as session:
        sandbox = session.sandbox().start().result()
        bare = Bare()

        def ours() -> None:
            assert sandbox.exec(["/bin/echo", "hello"]).result().stdout == "hello\n"

        medians = interleaved(args.rounds, ours, bare.run)
        pairs = [(many(sandbox), bare.run_many()) for _ in range(7)]
        bare.close()
    latency = near("exec of echo", medians[0], medians[1], "Daytona's SDK", RATIO)
    seconds, seconds_bare = (statistics.median(column) for column in zip(*pairs, strict=True))
    print(latency.row())
    print(f"{MANY} execs of {SLEEP} s: {seconds:.2f} s <= {SECONDS} s; SDK {seconds_bare:.2f} s")
    return 1 if args.check and not (latency.met and seconds <= SECONDS) else 0


if __name__ == "__main__":
    sys.exit(main())

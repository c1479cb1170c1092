"""What the e2b provider adds to E2B's own SDK, both against the emulator in the same run.

Run from the root of the repository; neither account nor network is needed:

    python -m benchmarks.hosted_e2b [--check] [--rounds 40]
"""

import argparse
import asyncio
import statistics
import sys
import threading
import time
from collections.abc import Coroutine
from typing import Any

from e2b import AsyncSandbox

from benchmarks.comparisons import interleaved, near
from sandboxkit import Sandbox, Session
from sandboxkit.providers.e2b import E2BProvider
from tests.e2b.server import emulator

MANY, SLEEP = 60, "0.2"
RATIO, SECONDS = 1.3, 1.5


class Bare:
    """The SDK alone, on an event loop that keeps running."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()
        self._sandbox: AsyncSandbox = self._wait(
            AsyncSandbox.create(timeout=600, allow_internet_access=False)
        )

    def run(self) -> None:
        """One command."""
        assert self._wait(self._sandbox.commands.run("/bin/echo hello")).stdout == "hello\n"

    def run_many(self) -> float:
        """Seconds for many commands at a time, as `many` does it."""

        async def run() -> None:
            await asyncio.gather(
                *(self._sandbox.commands.run(f"sleep {SLEEP}") for _ in range(MANY))
            )

        started = time.perf_counter()
        self._wait(run())
        return time.perf_counter() - started

    def close(self) -> None:
        self._wait(self._sandbox.kill())
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
    parser = argparse.ArgumentParser(description="Compare the e2b provider with E2B's SDK.")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a target is missed")
    parser.add_argument("--rounds", type=int, default=40)
    args = parser.parse_args()
    with emulator(), Session(E2BProvider()) as session:
        sandbox = session.sandbox().start().result()
        bare = Bare()

        def ours() -> None:
            assert sandbox.exec(["/bin/echo", "hello"]).result().stdout == "hello\n"

        medians = interleaved(args.rounds, ours, bare.run)
        pairs = [(many(sandbox), bare.run_many()) for _ in range(7)]
        bare.close()
    latency = near("exec of echo", medians[0], medians[1], "E2B's SDK", RATIO)
    seconds, seconds_bare = (statistics.median(column) for column in zip(*pairs, strict=True))
    print(latency.row())
    print(f"{MANY} execs of {SLEEP} s: {seconds:.2f} s <= {SECONDS} s; SDK {seconds_bare:.2f} s")
    return 1 if args.check and not (latency.met and seconds <= SECONDS) else 0


if __name__ == "__main__":
    sys.exit(main())

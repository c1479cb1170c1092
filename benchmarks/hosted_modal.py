"""What the modal provider adds to Modal's own SDK, both against the emulator in the same run.

Run from the root of the repository; neither account nor network is needed:

    python -m benchmarks.hosted_modal [--check] [--rounds 40]
"""

import argparse
import asyncio
import statistics
import sys
import threading
import time

import modal

from sandboxkit import Sandbox, Session
from sandboxkit.providers.modal import ModalProvider
from tests.emulators.modal.client import modal_emulator

ARGV = ("echo", "hello")
MANY, SLEEP = 60, "0.2"
RATIO, SECONDS = 1.3, 1.5


class Bare:
    """The SDK alone, on an event loop that keeps running."""

    def __init__(self, sandbox_id: str) -> None:
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, daemon=True).start()
        self._client = modal.Client.from_credentials("ak-emulator", "as-emulator")
        self._sandbox = modal.Sandbox.from_id(sandbox_id, client=self._client)

    def run(self) -> None:
        """One command with both outputs and the status, as fast as the SDK goes."""
        asyncio.run_coroutine_threadsafe(self._run(*ARGV, output=b"hello\n"), self._loop).result()

    def run_many(self) -> float:
        """Seconds for many commands at a time, as `concurrency` does it."""

        async def run() -> None:
            await asyncio.gather(*(self._run("sleep", SLEEP, output=b"") for _ in range(MANY)))

        started = time.perf_counter()
        asyncio.run_coroutine_threadsafe(run(), self._loop).result()
        return time.perf_counter() - started

    async def _run(self, *argv: str, output: bytes) -> None:
        process = await self._sandbox.exec.aio(*argv, text=False)
        printed, _, status = await asyncio.gather(
            process.stdout.read.aio(), process.stderr.read.aio(), process.wait.aio()
        )
        assert (printed, status) == (output, 0)

    def close(self) -> None:
        self._client.close()
        self._loop.call_soon_threadsafe(self._loop.stop)


def latency(sandbox: Sandbox, bare: Bare, rounds: int) -> tuple[float, float]:
    """Median seconds of ours and of the SDK's, in turns of five."""

    def ours() -> None:
        assert sandbox.exec(ARGV).result().stdout == "hello\n"

    seconds: dict[str, list[float]] = {"ours": [], "bare": []}
    for number in range(rounds + 1):
        for name, work in (("ours", ours), ("bare", bare.run)):
            for _ in range(5):
                started = time.perf_counter()
                work()
                if number:
                    seconds[name].append(time.perf_counter() - started)
    return statistics.median(seconds["ours"]), statistics.median(seconds["bare"])


def concurrency(sandbox: Sandbox) -> float:
    """Seconds for many commands at a time, each of which sleeps."""
    started = time.perf_counter()
    processes = [sandbox.exec(["sleep", SLEEP]) for _ in range(MANY)]
    assert {process.result(60).returncode for process in processes} == {0}
    return time.perf_counter() - started


def main() -> int:
    parser = argparse.ArgumentParser(description="Compare the modal provider with Modal's SDK.")
    parser.add_argument("--check", action="store_true", help="exit with 1 if a target is missed")
    parser.add_argument("--rounds", type=int, default=40)
    args = parser.parse_args()
    with modal_emulator(), Session(ModalProvider()) as session:
        sandbox = session.sandbox().start().result()
        bare = Bare(str(sandbox.id))
        ours, theirs = latency(sandbox, bare, args.rounds)
        pairs = [(concurrency(sandbox), bare.run_many()) for _ in range(7)]
        bare.close()
    ratio, many = ours / theirs, statistics.median(pair[0] for pair in pairs)
    many_bare = statistics.median(pair[1] for pair in pairs)
    print(f"exec: ours {ours * 1e3:.2f} ms, SDK {theirs * 1e3:.2f} ms, {ratio:.2f}x <= {RATIO}x")
    print(f"{MANY} execs of {SLEEP} s: ours {many:.2f} s <= {SECONDS} s, SDK {many_bare:.2f} s")
    return 1 if args.check and (ratio > RATIO or many > SECONDS) else 0


if __name__ == "__main__":
    sys.exit(main())

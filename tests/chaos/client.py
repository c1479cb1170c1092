"""The program that each round starts, and that something happens to.

    python -m tests.chaos.client PROVIDER TAG SEED SECONDS FOLDER [detach]

It prints "ready" when it begins to work, and at an orderly end what it saw, as JSON. It ends with
status 3 where a call ended with what is no SandboxError, or did not end, or left something open, or where
the session was not as fast as before once FOLDER had the file that says that everything is whole again.
"""

import faulthandler
import json
import signal
import sys
import time
import traceback
from pathlib import Path

from sandboxkit import SandboxError, Session
from tests.chaos._census import census, growth
from tests.chaos._pace import Pace
from tests.chaos._work import HEALED, PATIENCE, Work


def work(provider: str, tag: str, seed: int, seconds: float, folder: Path, detach: bool) -> int:
    """Warm up, work, close, and count what is left in this process."""
    with Session(provider, tags=f"chaos:{tag}") as session:
        session.run(["true"]).result()
    before = census()
    session = Session(provider, tags=f"chaos:{tag}", lifetime=120, pool=seed % 2 or None)
    pace = Pace(session)
    busy = Work(session, seed, f"chaos-{tag}", folder)
    wrong: list[str] = []
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    try:
        with session:
            if detach:
                session.sandbox(detach=True, lifetime=120).start()
            busy.run(seconds)
            if _healed(folder):
                _, slow = pace.back()
                wrong += [slow] if slow else []
    except* SandboxError as group:
        # Close says so where its connection was broken under it.
        busy.outcomes["close: " + type(group.exceptions[0]).__name__] += 1
    except* Exception as group:  # noqa: BLE001 - it is what this looks for
        wrong += traceback.format_exception(group)
    busy.end_children()
    wrong += busy.wrong
    wrong += [f"left open: {what} ({n} more)" for what, n in growth(before).items()]
    json.dump({"outcomes": busy.outcomes, "wrong": wrong}, sys.stdout)
    sys.stdout.write("\n")
    return 3 if wrong else 0


def _healed(folder: Path) -> bool:
    """Whether the round says, in time, that what it broke is whole again."""
    end = time.monotonic() + PATIENCE
    while not (folder / HEALED).exists() and time.monotonic() < end:
        time.sleep(0.05)
    return (folder / HEALED).exists()


def main() -> int:
    """Read the command line, and work."""
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    provider, tag, seed, seconds, folder, *rest = sys.argv[1:]
    return work(provider, tag, int(seed), float(seconds), Path(folder), "detach" in rest)


if __name__ == "__main__":
    sys.exit(main())

"""`python -m benchmarks.gvisor`: what gVisor costs on docker, measured in turns with the daemon's default runtime.

Each figure is the fastest of the rounds, which other programs of the machine disturb the least.
"""

import argparse
import time
from collections.abc import Callable
from typing import Literal

from sandboxkit import Sandbox, Session

Isolation = Literal["gvisor"]
_KINDS: tuple[Isolation | None, ...] = (None, "gvisor")
_COMPUTE = "sum(i * i for i in range(1_000_000))"
_SYSTEM_CALLS = "import os\nfor _ in range(20_000): os.stat('/tmp')"
_FORKS = "import os\nfor _ in range(50):\n if not os.fork(): os._exit(0)\n os.wait()"


def _inside(sandbox: Sandbox, code: str) -> float:
    """Return the seconds that code takes within a Python of the sandbox, without the Python's start."""
    timed = f"import time\nt = time.perf_counter()\n{code}\nprint(time.perf_counter() - t)"
    return float(sandbox.exec(["python3", "-c", timed], check=True).result(120).stdout)


def _seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def _round(session: Session, isolation: Isolation | None) -> dict[str, float]:
    sandbox = session.sandbox(isolation=isolation)
    try:

        def true() -> object:
            return sandbox.exec(["true"], check=True).result(120)

        return {
            "start and first command": _seconds(true),
            "`true`": min(_seconds(true) for _ in range(10)),
            "start of Python": min(
                _seconds(lambda: sandbox.exec(["python3", "-c", ""]).result(120)) for _ in range(3)
            ),
            "10^6 squares in Python": _inside(sandbox, _COMPUTE),
            "20,000 times `os.stat`": _inside(sandbox, _SYSTEM_CALLS),
            "50 times `os.fork`": _inside(sandbox, _FORKS),
        }
    finally:
        sandbox.stop().result(120)


def main() -> None:
    """Print a table of milliseconds."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=10)
    rounds: int = parser.parse_args().rounds
    best: dict[Isolation | None, dict[str, float]] = {kind: {} for kind in _KINDS}
    with Session("docker") as session:
        for _ in range(rounds):
            for kind, figures in best.items():
                for what, seconds in _round(session, kind).items():
                    figures[what] = min(seconds, figures.get(what, seconds))
    print("| ms | default | gVisor | times |\n|---|---|---|---|")
    for what, plain in best[None].items():
        other = best["gvisor"][what]
        print(f"| {what} | {plain * 1e3:.1f} | {other * 1e3:.1f} | {other / plain:.1f} |")


if __name__ == "__main__":
    main()

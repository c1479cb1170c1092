"""Train for hours while sandboxes die, servers are killed and SIGTERM comes, and say what it came to.

    python -m benchmarks.grpo_overnight --folder F --hours 4                 the disturbed run
    python -m benchmarks.grpo_overnight --folder F --hours 4 --undisturbed   what it is compared with
    python -m benchmarks.grpo_overnight --folder F --further 1000            the disturbed one, longer
    python -m benchmarks.grpo_overnight --folder F --report                  docs/grpo-overnight.md

The trainer is the user's program, on the model and task of `make grpo-demo`, with two servers. A few
steps say how many fill the hours; both runs make as many. It may be ended with SIGTERM or SIGINT, and
goes on when it is started again: the time in which it trained counts. With `--further` the disturbed
run makes so many steps more by itself, as a user's whose `run.steps` was raised. Needs the training group, and
vLLM (`--vllm`, its environment's Python) or `--stand-in`, which samples with transformers.
"""

import argparse
import signal
import sys
import threading
from pathlib import Path
from types import FrameType
from typing import Any

from benchmarks.grpo_overnight import report
from benchmarks.grpo_overnight.drive import ROOT, Broken, calibrated, drive
from benchmarks.grpo_overnight.plan import LEGS, Leg, Plan, write
from benchmarks.grpo_overnight.servers import served
from sandboxkit import ConfigurationError

VLLM = ROOT / ".venv" / "vllm" / "bin" / "python"
_DEFAULTS = {
    "hours": 0.0,
    "steps": 0,
    "further": 0,
    "seed": 0,
    "rate": 0.2,
    "kill_every": 1200.0,
    "back_after": 60.0,
    "signals": 2,
    "look_every": 30.0,
}
_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def main() -> int:
    """0 where it came to its end, 2 for wrong arguments, 1 where the trainer failed, 128 + n for a signal."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--undisturbed", action="store_true")
    parser.add_argument("--hours", type=float)
    parser.add_argument("--steps", type=int, help="instead of as many as fill the hours")
    parser.add_argument("--further", type=int, help="the disturbed run's steps after those")
    parser.add_argument("--seed", type=int)
    parser.add_argument("--rate", type=float, help="of sandboxes and runs that die; 0.2")
    parser.add_argument("--kill-every", type=float, help="seconds between kills of a server; 1200")
    parser.add_argument("--back-after", type=float, help="seconds until it is started again; 60")
    parser.add_argument("--signals", type=int, help="SIGTERM to the trainer, so often; 2")
    parser.add_argument("--look-every", type=float, help="seconds between looks; 30")
    parser.add_argument("--vllm", default=str(VLLM), help="a Python that has it")
    parser.add_argument("--stand-in", action="store_true")
    parser.add_argument("--report", nargs="?", type=Path, const=ROOT / "docs" / "grpo-overnight.md")
    given = parser.parse_args()
    folder = given.folder.resolve()
    try:
        if given.report:
            write(given.report, report.page(folder))
            return 0
        return _run(given, folder)
    except ConfigurationError as error:
        sys.stderr.write(f"error: {error}\n")
        return 2
    except Broken as error:
        sys.stderr.write(f"error: {error}\n")
        return 1


def _run(given: argparse.Namespace, folder: Path) -> int:
    plan, wanted = Plan.load(folder), vars(given)
    asked = {name: wanted[name] for name in _DEFAULTS}
    if plan is not None:
        plan = plan.prolonged(folder, asked.pop("further"))
        plan.refuse_changes(**asked, vllm=not given.stand_in)
    elif not given.hours and not given.steps:
        raise ConfigurationError("--hours is not set: give how long the run is to train")
    if not given.stand_in and not Path(given.vllm).exists():
        raise ConfigurationError(
            f"--vllm {given.vllm} is no file: give the Python of an environment with vLLM "
            "(make test-vllm makes one), or --stand-in"
        )
    if not (folder / "held_out.jsonl").exists():
        from toys import compose  # which loads torch

        folder.mkdir(parents=True, exist_ok=True)
        compose.write(folder)
    for number in _SIGNALS:
        signal.signal(number, _exit)  # before there is anything to go on with
    leg = Leg(folder / LEGS[given.undisturbed])
    (leg.folder / "servers").mkdir(parents=True, exist_ok=True)
    python = None if given.stand_in else given.vllm
    with served(python, folder / "model", leg.folder / "servers") as servers:
        for server in servers:
            server.wait()
        if plan is None:
            values: dict[str, Any] = {  # as argparse read them
                name: value if asked[name] is None else asked[name]
                for name, value in _DEFAULTS.items()
            }
            plan = Plan(vllm=not given.stand_in, **values)
            if not plan.steps:
                plan = calibrated(folder, plan, servers)
            plan.save(folder)
        stop, came = threading.Event(), list[int]()

        def note(number: int, _: FrameType | None) -> None:
            came.append(number)
            stop.set()

        for number in _SIGNALS:
            signal.signal(number, note)
        print(f"{plan.steps} steps; see {leg.log}", flush=True)
        done = drive(folder, leg, plan, servers, stop)
    return 0 if done else 128 + came[0]


def _exit(number: int, _: FrameType | None) -> None:
    raise SystemExit(128 + number)


if __name__ == "__main__":
    sys.exit(main())

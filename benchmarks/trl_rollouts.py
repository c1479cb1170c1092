"""Compares sequential tool calls of a batch, as TRL makes them, with concurrent ones.

Needs only the trl extra; the model is created here and follows a script:

    python -m benchmarks.trl_rollouts [--check] [--rounds 5] [--provider docker]
"""

import argparse
import contextlib
import io
import logging
import statistics
import sys
import tempfile
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sandboxkit import Sandbox
from sandboxkit.integrations.rewards import Outcome, Verdict
from sandboxkit.integrations.trl import EnvironmentReward, SandboxEnvironments, SandboxRollouts
from tests.trl.tiny import CHAT, LONG, call, script, trainer

ROLLOUTS, SLEEP = 8, "0.2"
FASTER = 3.0
MODES = ("environment_factory", "rollout_func")


async def judge(sandbox: Sandbox, row: Mapping[str, Any]) -> Verdict:
    """Accept every rollout, since only the time matters."""
    return Verdict(Outcome.PASSED, 1.0)


def turn(mode: str, provider: str) -> float:
    """Return the seconds between two turns of the model, in which every rollout calls its tool once."""
    with (
        SandboxEnvironments(judge, provider=provider) as environments,
        tempfile.TemporaryDirectory(prefix="sandboxkit-benchmark-") as folder,
    ):
        factory = environments if mode == "environment_factory" else SandboxRollouts(environments)
        with contextlib.redirect_stdout(io.StringIO()):  # TRL prints its log
            training = trainer(
                Path(folder),
                CHAT,
                reward_funcs=[EnvironmentReward()],
                config={**LONG, "per_device_train_batch_size": ROLLOUTS},
                **{mode: factory},
            )
            # The first call waits for the sandbox; only the second is measured.
            wait, use = call("bash", command="true"), call("bash", command=f"sleep {SLEEP}")
            times = script(training, wait, use, "done")
            training.train()
        return times[2] - times[1]


def main() -> int:
    """Measure both alternately and print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="exit with 1 if the target is missed")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--provider", default="local")
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    seconds: dict[str, list[float]] = {mode: [] for mode in MODES}
    for _ in range(args.rounds):
        for mode in MODES:
            seconds[mode].append(turn(mode, args.provider))
    serial, at_once = (statistics.median(seconds[mode]) for mode in MODES)
    name = f"{ROLLOUTS} rollouts, a tool of {SLEEP} s, {args.provider}"
    ratio = serial / at_once
    print(
        f"{name}: {MODES[1]} {at_once:.2f} s, {MODES[0]} {serial:.2f} s, {ratio:.1f} times faster"
    )
    return int(args.check and ratio < FASTER)


if __name__ == "__main__":
    sys.exit(main())

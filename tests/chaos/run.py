"""Many rounds, two at a time, each with a deadline; a table of what they found."""

import argparse
import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict

from tests.chaos.round import Outcome, Setting, kind_of

__all__ = ["failures", "rounds", "table"]

_AT_A_TIME = 2
_DEADLINE = 300.0


def rounds(setting: Setting, count: int, seed: int) -> list[Outcome]:
    """Run `count` rounds, with the seeds from `seed` on."""

    def one(number: int) -> Outcome:
        outcome = _one(setting, number)
        for text in failures([outcome]):
            again = f"make chaos PROVIDER={setting.provider} N=1 SEED={number}"
            sys.stderr.write(f"{text}\n  again: {again}\n")
        return outcome

    with ThreadPoolExecutor(_AT_A_TIME) as pool:
        return list(pool.map(one, range(seed, seed + count)))


def _one(setting: Setting, seed: int) -> Outcome:
    command = [sys.executable, "-m", "tests.chaos.round"]
    outcome = Outcome(seed, kind_of(seed, setting))
    process = subprocess.Popen(
        [*command, json.dumps(asdict(setting)), str(seed)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        output, errors = process.communicate(timeout=_DEADLINE)
    except subprocess.TimeoutExpired:
        process.terminate()  # it takes its client along
        process.communicate()
        outcome.hang = f"the round itself did not end in {_DEADLINE:g} s"
        return outcome
    if process.returncode != 0:
        outcome.wrong = [f"the round failed with status {process.returncode}: {errors[-3000:]}"]
        return outcome
    return Outcome(**json.loads(output))


def failures(outcomes: Sequence[Outcome]) -> list[str]:
    """Each round that hung, ended wrongly or left something, described."""
    found: list[str] = []
    for each in outcomes:
        output = [each.hang] if each.hang else []
        output += each.wrong
        output += [f"left behind: {what}" for what in each.left]
        if output:
            found.append(f"round {each.seed} ({each.kind}): " + "\n  ".join(output))
    return found


def _hung(outcome: Outcome) -> bool:
    return bool(outcome.hang) or any(text.startswith("hang: ") for text in outcome.wrong)


def table(outcomes: Sequence[Outcome], seconds: float) -> str:
    """What a run amounts to."""
    kinds = Counter(each.kind for each in outcomes)
    calls: Counter[str] = Counter()
    for each in outcomes:
        calls.update(each.outcomes)
    rows = [
        ("rounds", str(len(outcomes))),
        ("kinds", ", ".join(f"{kind} {count}" for kind, count in sorted(kinds.items()))),
        ("left behind", str(sum(len(each.left) for each in outcomes))),
        ("hangs", str(sum(_hung(each) for each in outcomes))),
        ("other failures", str(sum(bool(each.wrong) for each in outcomes))),
        ("removed by cleanup alone", str(sum(bool(each.swept) for each in outcomes))),
        ("longest clean-up", f"{max(each.seconds for each in outcomes):.1f} s"),
        ("calls seen to end", ", ".join(f"{name} {n}" for name, n in calls.most_common())),
        ("took", f"{seconds:.0f} s"),
    ]
    return "\n".join(f"{name:25} {value}" for name, value in rows)


def main(argv: Sequence[str] | None = None) -> int:
    """The command line; the status is 1 where a round failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.run")
    parser.add_argument("--provider", default="local")
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--through", help="such as DOCKER_HOST=unix:///var/run/docker.sock")
    parser.add_argument("--client", help="the module of the clients whose connection is broken")
    parser.add_argument("--places", help="module:Class, see tests.chaos.round.Places")
    options = parser.parse_args(argv)
    setting = Setting(options.provider, options.places, options.through, options.client)
    started = time.monotonic()
    outcomes = rounds(setting, options.rounds, options.seed)
    sys.stdout.write(f"{'provider':25} {options.provider}, seed {options.seed}\n")
    sys.stdout.write(table(outcomes, time.monotonic() - started) + "\n")
    return 1 if failures(outcomes) else 0


if __name__ == "__main__":
    sys.exit(main())

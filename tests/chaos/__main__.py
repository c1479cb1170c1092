"""`make chaos`: rounds of killed clients, faulted calls or a soak, on the providers of this project.

python -m tests.chaos rounds PROVIDER,... COUNT SEED
python -m tests.chaos calls TARGET,... COUNT SEED
python -m tests.chaos soak PROVIDER,... SECONDS SEED
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict

from tests.chaos.calls import counts, rows_of
from tests.chaos.round import Outcome, Setting, kind_of

SETTINGS = {
    "local": Setting("local"),
    "docker": Setting(
        "docker", "DOCKER_HOST=" + os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock")
    ),
}
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
    command = [sys.executable, "-m", "tests.chaos.round", json.dumps(asdict(setting)), str(seed)]
    outcome, pipe = Outcome(seed, kind_of(seed, setting)), subprocess.PIPE
    with subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=pipe, stderr=pipe, text=True
    ) as process:
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
        output = [*filter(None, [each.hang]), *each.wrong]
        output += [f"left behind: {what}" for what in each.left]
        if output:
            found.append(f"round {each.seed} ({each.kind}): " + "\n  ".join(output))
    return found


def table(outcomes: Sequence[Outcome], seconds: float) -> str:
    """Return a run as text: its calls by outcome, and each that hung or was wrong."""
    calls: Counter[str] = Counter()
    for each in outcomes:
        calls.update(each.outcomes)
    hung = [each for each in outcomes if each.hang or "hang: " in "\n".join(each.wrong)]
    rows = {
        "rounds": str(len(outcomes)),
        "kinds": counts(Counter(each.kind for each in outcomes)),
        "left behind": str(sum(len(each.left) for each in outcomes)),
        "hangs": str(len(hung)),
        "other failures": str(sum(bool(each.wrong) for each in outcomes)),
        "removed by cleanup alone": str(sum(bool(each.swept) for each in outcomes)),
        "longest clean-up": f"{max(each.seconds for each in outcomes):.1f} s",
        "calls seen to end": counts(calls),
        "took": f"{seconds:.0f} s",
    }
    return rows_of(rows)


def run_rounds(providers: list[str], count: int, seed: int) -> bool:
    """Whether all went well. A provider that is not of this project is asked itself for what is left."""
    well = True
    for provider in providers:
        started = time.monotonic()
        outcomes = rounds(SETTINGS.get(provider, Setting(provider)), count, seed)
        print_table(f"{provider}, seed {seed}", table(outcomes, time.monotonic() - started))
        well = well and not failures(outcomes)
    return well


def run_calls(targets: list[str], count: int, seed: int) -> bool:
    """Whether all went well; the calls are shared out among the targets."""
    from tests.chaos.targets import TARGETS, run

    well = True
    names = [name for name in TARGETS if name in targets or name.partition("-")[0] in targets]
    for n, name in enumerate(names):
        started = time.monotonic()
        tally = run(name, len(range(n, count, len(names))), seed)
        print_table(f"{name}, seed {seed}", tally.table())
        sys.stdout.write(f"{'took':25} {time.monotonic() - started:.0f} s\n\n")
        well = well and not tally.failed
    return well


def run_soak(providers: list[str], seconds: int, seed: int) -> bool:
    """Whether all went well: half of the time with a pool, half of it without."""
    from tests.chaos.soak import run

    well = True
    for provider in providers:
        for pool in (None, 2):
            soaked = run(provider, seconds / 2, seed, pool=pool)
            print_table(f"{provider}, pool {pool}, seed {seed}", soaked.table())
            well = well and not soaked.failed
    return well


def print_table(title: str, text: str) -> None:
    """Print it, whatever comes after."""
    sys.stdout.write(f"{'of':25} {title}\n{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    mode, who, many, first = sys.argv[1:]
    action = {"rounds": run_rounds, "calls": run_calls, "soak": run_soak}[mode]
    with tempfile.TemporaryDirectory() as state:
        os.environ["SANDBOXKIT_STATE_DIR"] = state
        sys.exit(0 if action(who.split(","), int(many), int(first)) else 1)

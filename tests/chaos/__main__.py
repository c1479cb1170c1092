"""`make chaos`: rounds of killed clients, faulted calls or a soak, on the providers of this project.

python -m tests.chaos rounds PROVIDER,... COUNT SEED
python -m tests.chaos calls TARGET,... COUNT SEED
python -m tests.chaos soak PROVIDER,... SECONDS SEED
python -m tests.chaos hostile local SECONDS SEED
"""

import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pprint import pformat

from tests.chaos.round import Outcome, Setting, kind_of

_DOCKER = os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock")
SETTINGS = {"local": Setting("local"), "docker": Setting("docker", f"DOCKER_HOST={_DOCKER}")}
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


def run_rounds(provider: str, count: int, seed: int) -> bool:
    """Whether all went well. A provider that is not of this project is asked itself for what is left."""
    outcomes = rounds(SETTINGS.get(provider, Setting(provider)), count, seed)
    kinds = Counter(each.kind for each in outcomes)
    calls = sum((Counter(each.outcomes) for each in outcomes), Counter[str]())
    swept = sum(bool(each.swept) for each in outcomes)
    longest = max(each.seconds for each in outcomes)
    sys.stdout.write(
        f"{provider}: {kinds}; calls seen to end: {calls}; left to cleanup: {swept}; "
        f"longest clean-up: {longest:.1f} s\n"
    )
    return not failures(outcomes)


def run_calls(target: str, count: int, seed: int) -> bool:
    """Whether all went well; the calls are shared out among the ways to a target."""
    from tests.chaos.targets import TARGETS, run

    well, names = True, [name for name in TARGETS if target in (name, name.partition("-")[0])]
    for n, name in enumerate(names):
        tally = run(name, len(range(n, count, len(names))), seed)
        sys.stdout.write(f"{name}: {pformat(tally)}\n")
        well = well and not tally.failed
    return well


def run_soak(provider: str, seconds: int, seed: int) -> bool:
    """Whether all went well: half of the time with a pool, half of it without."""
    from tests.chaos.soak import run

    assert provider == "local", "a soak is of local alone"
    well = True
    for pool in (None, 2):
        soaked = run(seconds / 2, seed, pool=pool)
        sys.stdout.write(f"pool {pool}: {pformat(soaked)}\n")
        well = well and not soaked.failed
    return well


def run_hostile(provider: str, seconds: int, seed: int) -> bool:
    """Whether honest sandboxes were served beside a hostile agent; nothing of it is random."""
    from tests.chaos.test_hostile import run

    found = run(seconds)
    sys.stdout.write(f"{pformat(found)}\n")
    return not found.wrong and found.beside <= max(3 * found.alone, 0.05)


if __name__ == "__main__":
    mode, who, many, first = sys.argv[1:]
    modes = {"rounds": run_rounds, "calls": run_calls, "soak": run_soak, "hostile": run_hostile}
    with tempfile.TemporaryDirectory() as state:
        os.environ["SANDBOXKIT_STATE_DIR"] = state
        went = [modes[mode](each, int(many), int(first)) for each in who.split(",")]
        sys.exit(0 if all(went) else 1)

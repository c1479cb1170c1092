"""`make chaos`: rounds of killed clients, faulted calls or a soak, on the providers of this project.

python -m tests.chaos rounds PROVIDER COUNT SEED
python -m tests.chaos calls TARGET,... COUNT SEED
python -m tests.chaos soak PROVIDER,... SECONDS SEED
"""

import os
import sys
import tempfile
import time

from tests.chaos.round import Setting
from tests.chaos.run import failures, rounds, table

SETTINGS = {
    "local": Setting("local", places="tests.chaos.places:Local"),
    "docker": Setting(
        "docker",
        places="tests.chaos.places:Docker",
        through="DOCKER_HOST=" + os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock"),
        client="tests.chaos.distant",
    ),
    # In the cluster and namespace of KUBECONFIG and of the provider's variables.
    "kubernetes": Setting(
        "kubernetes",
        places="tests.chaos.places:Kubernetes",
        through="SANDBOXKIT_CHAOS_API=tcp://10.97.0.1:443",
        client="tests.chaos.through_cluster",
        alone=30.0,
    ),
}


def run_rounds(providers: list[str], count: int, seed: int) -> bool:
    """Whether all went well."""
    well = True
    for provider in providers:
        started = time.monotonic()
        outcomes = rounds(SETTINGS[provider], count, seed)
        print_table(f"{provider}, seed {seed}", table(outcomes, time.monotonic() - started))
        well = well and not failures(outcomes)
    return well


def run_calls(targets: list[str], count: int, seed: int) -> bool:
    """Whether all went well; the calls are shared out among the targets."""
    from tests.chaos.targets import TARGETS, run

    well = True
    names = [name for name in TARGETS if name in targets or name.partition("-")[0] in targets]
    with tempfile.TemporaryDirectory() as state:
        os.environ["SANDBOXKIT_STATE_DIR"] = state
        for n, name in enumerate(names):
            started = time.monotonic()
            tally = run(name, len(range(n, count, len(names))), seed)
            print_table(f"{name}, seed {seed}", tally.table())
            sys.stdout.write(f"{'took':25} {time.monotonic() - started:.0f} s\n\n")
            well = well and not tally.failed
    return well


def run_soak(providers: list[str], seconds: int, seed: int) -> bool:
    """Whether all went well: half of the time with a pool, half of it without."""
    from tests.chaos.soaks import run

    well = True
    with tempfile.TemporaryDirectory() as state:
        os.environ["SANDBOXKIT_STATE_DIR"] = state
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
    sys.exit(0 if action(who.split(","), int(many), int(first)) else 1)

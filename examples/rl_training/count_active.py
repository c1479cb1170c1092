"""Count a training run's sandboxes by their tags, from any process."""

import sys

from sandboxkit import Sandbox, SandboxState, Session

TAGS = ["wandb-run:count-active", "slurm-job:12345", "model:tiny"]


def count(tags: list[str]) -> int:
    """Return the number of running sandboxes that have all of these tags."""
    return len(Sandbox.list(tags, SandboxState.RUNNING).result())


if sys.argv[1:]:
    print(f"{count(sys.argv[1:])} active")
else:
    with Session(tags=TAGS) as session:
        sandboxes = [session.sandbox().start() for _ in range(3)]
        for starting in sandboxes:
            starting.result()
        print(f"{count(TAGS)} active")
        sandboxes[0].result().stop().result()
        print(f"{count(['slurm-job:12345'])} active after one stopped")
    print(f"{count(TAGS)} active at the end")

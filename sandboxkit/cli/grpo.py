"""`sandboxkit grpo`: plot a training run and show its rollouts."""

import argparse
import importlib
from pathlib import Path

from sandboxkit.cli import _options


def add(verbs: _options.Verbs) -> None:
    """Add the verb to the command line."""
    parser = verbs.add_parser(
        "grpo",
        help="look at a training run: its reward, its rollouts",
        description="Look at runs of the GRPO trainer.",
        epilog="To train: python -m sandboxkit.integrations.grpo CONFIG.toml",
    )
    parts = parser.add_subparsers(metavar="PART", required=True)
    plot = parts.add_parser(
        "plot",
        help="draw the reward of a run",
        description="Print the curve of a run's reward, and write it as reward.svg in its folder.",
    )
    show = parts.add_parser(
        "show",
        help="list the steps of a run, and read its rollouts",
        description="List the steps of a run with their outcomes; or, with an option, its rollouts.",
    )
    for part, verb in ((plot, draw), (show, read)):
        part.add_argument("run", metavar="RUN", type=Path, help="the folder of the run")
        part.set_defaults(verb=verb)
    show.add_argument("--step", metavar="N", type=int, help="the rollouts of one step")
    show.add_argument(
        "--outcome", metavar="NAME", help="the rollouts with this outcome, such as timeout"
    )
    which = show.add_mutually_exclusive_group()
    for name in ("best", "worst"):
        which.add_argument(
            f"--{name}",
            dest="which",
            action="store_const",
            const=name,
            help=f"the whole text of the rollout with the {name} reward",
        )
    which.add_argument(
        "--rollout", dest="which", metavar="GROUP.MEMBER", help="the whole text of this rollout"
    )


def draw(args: argparse.Namespace) -> int:
    """Run `plot`."""
    # Imported by name and lazily: the command line must work without the integrations.
    plot = importlib.import_module("sandboxkit.integrations._training.plot")
    print(plot.draw(args.run) or "no step yet")
    return 0


def read(args: argparse.Namespace) -> int:
    """Run `show`."""
    show = importlib.import_module("sandboxkit.integrations._training.show")
    chosen = (args.step, args.outcome, args.which)
    for line in show.steps(args.run) if not any(chosen) else show.rollouts(args.run, *chosen):
        print(line)
    return 0

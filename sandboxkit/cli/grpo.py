"""`sandboxkit grpo plot`: the curve of a training run."""

import argparse
import importlib
from pathlib import Path

from sandboxkit.cli import _options


def add(verbs: _options.Verbs) -> None:
    """Declare the verb."""
    parser = verbs.add_parser(
        "grpo",
        help="draw the reward of a training run",
        description="Look at runs of the GRPO trainer.",
        epilog="To train: python -m sandboxkit.integrations.grpo CONFIG.toml",
    )
    parts = parser.add_subparsers(metavar="PART", required=True)
    plot = parts.add_parser(
        "plot",
        help="draw the reward of a run",
        description="Print the curve of a run's reward, and write it as reward.svg in its folder.",
    )
    plot.add_argument("run", metavar="RUN", type=Path, help="the folder of the run")
    plot.set_defaults(verb=main)


def main(args: argparse.Namespace) -> int:
    """Run it."""
    # By name, and only now: the command line stands without the integrations.
    plot = importlib.import_module("sandboxkit.integrations.grpo.plot")
    print(plot.draw(args.run) or "no step yet")
    return 0

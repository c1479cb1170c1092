"""The command that trains a model: `python -m sandboxkit.integrations.grpo CONFIG.toml [--set a.b=c]`."""

import argparse
import os
import sys
import warnings
from collections.abc import Iterator, Sequence

from sandboxkit import SandboxError
from sandboxkit.integrations._extras import needs
from sandboxkit.integrations.grpo.config import read
from sandboxkit.integrations.grpo.engines import EngineError
from sandboxkit.integrations.grpo.errors import TrainingError
from sandboxkit.integrations.grpo.output import say

__all__ = ["main"]

USAGE, FAILED = 2, 125


def main(arguments: Sequence[str] | None = None) -> int:
    """Run; return the exit status: 0, 2 for a wrong configuration, 125 for a failure, 128 + n for signal n."""
    parser = argparse.ArgumentParser(
        prog="python -m sandboxkit.integrations.grpo",
        description="Train a model with GRPO: rollouts and rewards in sandboxes, FSDP2 training.",
    )
    parser.add_argument("config", help="a TOML file")
    parser.add_argument(
        "--set", action="append", default=[], metavar="A.B=C", help="over the file; repeatable"
    )
    given = parser.parse_args(arguments)
    try:
        config = read(given.config, given.set)
        os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
        with needs("grpo-cpu"):
            from sandboxkit.integrations.grpo.trainer import train

        # torch warns at every checkpoint that a single process writes.
        warnings.filterwarnings("ignore", message="torch.distributed is disabled")
        signalled = train(config)
    except (SandboxError, EngineError, TimeoutError, TrainingError, ExceptionGroup) as error:
        errors = list(_flat(error))
        # One failure may end many rollouts with the same error: print it once.
        lines = dict.fromkeys(f"error: {type(each).__name__}: {each}" for each in errors)
        for line in (*lines, *getattr(error, "__notes__", ())):
            say(sys.stderr, line)
        return USAGE if all(isinstance(each, ValueError) for each in errors) else FAILED
    return 128 + signalled if signalled else 0


def _flat(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for each in error.exceptions:
            yield from _flat(each)
    else:
        yield error

"""The servers of a run, one of which is killed now and then: vLLM, or what stands in for it in tests."""

import contextlib
import ctypes
import signal
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from tests.grpo import stand_ins

__all__ = ["COUNT", "Served", "answers", "end_with_parent", "served"]

COUNT = 2
STOP = 1
"""The token with which the toy's completions end."""
_ANSWERS_WITHIN = 5.0
_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG
_libc = ctypes.CDLL(None)


class Served(Protocol):
    """One, of which each start has the same url."""

    @property
    def url(self) -> str: ...

    def start(self) -> None:
        """Begin; it answers later."""
        ...

    def wait(self) -> None:
        """Until it answers."""
        ...

    def kill(self) -> None:
        """SIGKILL, and return when all of it is gone."""
        ...


def answers(server: Served) -> bool:
    """Whether it does at once."""
    try:
        with urllib.request.urlopen(f"{server.url}/v1/models", timeout=_ANSWERS_WITHIN):
            return True
    except OSError:
        return False


def end_with_parent() -> None:
    """SIGTERM for this process, once the one that started it has died."""
    _libc.prctl(_DEATH_SIGNAL, signal.SIGTERM)


@contextlib.contextmanager
def served(python: str | None, model: Path, scratch: Path) -> Iterator[list[Served]]:
    """`COUNT` of them, begun; killed at the end. `python` has vLLM; None is for the stand-in."""
    made: list[Served]
    with contextlib.ExitStack() as stack:
        if python is not None:
            from benchmarks.grpo_overnight.vllm_servers import VLLM  # which loads torch

            made = [VLLM(python, model, scratch) for _ in range(COUNT)]
        else:
            nursery = stand_ins.nursery_of(model, STOP)
            stack.enter_context(nursery)
            stack.callback(nursery.kill)
            made = [stand_ins.Served(nursery, stand_ins.free_port()) for _ in range(COUNT)]
        for each in made:
            stack.callback(each.kill)
            each.start()
        yield made

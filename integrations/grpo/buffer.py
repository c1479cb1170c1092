"""The buffer: groups of rollouts made ahead of training, so many and so old at most."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from sandboxkit.integrations.grpo.config import Config
from sandboxkit.integrations.grpo.outage import Outage
from sandboxkit.integrations.grpo.rollout import Group

__all__ = ["Batch", "Buffer"]


@dataclass(slots=True)
class Batch:
    """What one step trains on, and what was made for it."""

    groups: list[Group] = field(default_factory=list)
    """To train on, in the order of their numbers; fewer than asked for after all refills."""
    finished: list[Group] = field(default_factory=list)
    """All that finished for this step, those without a signal included."""
    stale: int = 0
    """Groups dropped because their weights were too old."""
    equal: int = 0
    """Groups dropped because their rewards were equal, or fewer than two were known."""
    failed: int = 0
    """Rollouts without a reward."""
    remade: int = 0
    """Groups that were made again after an outage; what failed of them is not in `finished`."""


class Buffer:
    """Starts groups, and hands them out when they have something to teach.

    For the step of version v at most (v + lag + 1) x prompts_per_step groups, and the refills,
    have been started: with lag 0 none before the last step's weights are there. Runs on one
    event loop. `position` is the number of the next group to start; `finished` are the groups that
    came to their end for the last batch, also where there was none. A group that an outage of the
    backend took a rollout from is made again, under its number, once that works.
    """

    def __init__(
        self,
        make: Callable[[int], Awaitable[Group]],
        config: Config,
        outage: Outage,
        position: int = 0,
    ) -> None:
        self._make, self._outage = make, outage
        self._size, self._lag = config.rollout.prompts_per_step, config.buffer.lag
        self._drop_equal = config.buffer.drop_equal
        self._refills = int(config.buffer.max_refill * self._size)
        self._running: set[asyncio.Task[Group]] = set()
        self._ready: list[Group] = []
        self.position = position
        self.finished: list[Group] = []

    async def take(self, version: int, last: int) -> Batch:
        """The batch for the step of this version; `last` is the version of the run's last step.

        Raises ProviderUnavailableError where the backend, or the grader, is out for too long.
        """
        batch, refills = Batch(), self._refills
        self.finished = batch.finished
        ahead = min(self._lag, last - version)
        while True:
            usable = []
            for group in self._ready:
                if group.version is not None and version - group.version > self._lag:
                    batch.stale += 1
                elif self._drop_equal and not group.teaches:
                    batch.equal += 1
                else:
                    usable.append(group)
            self._ready = sorted(usable, key=lambda group: group.number)
            wanted = self._size * (ahead + 1) - len(self._ready) - len(self._running)
            # The first fill of a step is its own; what replaces dropped groups is a refill.
            dropped = batch.stale + batch.equal
            wanted -= max(0, dropped - refills)
            self._start(max(0, wanted))
            if len(self._ready) >= self._size or not self._running:
                break
            enough = asyncio.FIRST_COMPLETED if self._lag else asyncio.ALL_COMPLETED
            done, self._running = await asyncio.wait(self._running, return_when=enough)
            # Of all of them: one that nobody looks at is written to standard error by asyncio.
            failures = [error for task in done if (error := task.exception())]
            if failures:
                raise failures[0]
            groups = sorted([task.result() for task in done], key=lambda group: group.number)
            batch.finished += groups
            self._ready += groups
            await self._mend(batch)
        batch.groups, self._ready = self._ready[: self._size], self._ready[self._size :]
        return batch

    async def aclose(self) -> None:
        """Give up all groups that are being made."""
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)
        self._running.clear()

    def _start(self, count: int) -> None:
        for _ in range(count):
            self._running.add(asyncio.ensure_future(self._make(self.position)))
            self.position += 1

    async def _mend(self, batch: Batch) -> None:
        """After an outage, make the groups again that it took rollouts from."""
        rollouts = [rollout for group in batch.finished for rollout in group.rollouts]
        # Of fewer than a step's worth the share says little.
        enough = len(batch.finished) >= min(self._size, 4)
        if enough and await self._outage.waited(rollouts, "rollouts"):
            for group in [group for group in batch.finished if None in group.rewards]:
                batch.finished.remove(group)
                if group in self._ready:
                    self._ready.remove(group)
                    self._running.add(asyncio.ensure_future(self._make(group.number)))
                    batch.remade += 1
        batch.failed = sum(group.rewards.count(None) for group in batch.finished)

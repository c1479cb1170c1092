"""The buffer: groups of rollouts made ahead of training, limited in number and age."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from sandboxkit.integrations.grpo.config import Config
from sandboxkit.integrations.grpo.outage import Outage
from sandboxkit.integrations.grpo.rollout import Group

__all__ = ["Batch", "Buffer"]


@dataclass(slots=True)
class Batch:
    """The groups that one step trains on, and counts of the groups made for it."""

    groups: list[Group] = field(default_factory=list)
    """The groups to train on, ordered by number. There may be fewer than wanted if the refills run out."""
    finished: list[Group] = field(default_factory=list)
    """All groups that finished for this step, including those without a signal."""
    stale: int = 0
    """Groups dropped because their weights were too old."""
    equal: int = 0
    """Groups dropped because their known rewards are equal or fewer than two."""
    failed: int = 0
    """Rollouts without a reward."""
    remade: int = 0
    """Groups remade after an outage. Their failed versions are not in `finished`."""


class Buffer:
    """Starts groups, and returns those that carry a training signal.

    Up to the step of version v it starts at most (v + lag + 1) x prompts_per_step groups plus the
    refills; with lag 0 no group starts before the engine has the last step's weights. Runs on one
    event loop. `position` is the number of the next group to start. `finished` holds the groups
    that finished for the last call of `take`, even if that raised. A group that lost a rollout to
    an outage is remade under the same number once the backend works.
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
        """Wait for the groups of a step, start those of the next ones, and return the step's batch.

        `version` is that of the trainer's weights at the beginning of the step, `last` that of the run's
        last step. Raises ProviderUnavailableError if an outage of the backend lasts too long, and
        GraderError if the grader raised too often.
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
            # Only groups that replace dropped ones count as refills.
            dropped = batch.stale + batch.equal
            wanted -= max(0, dropped - refills)
            self._start(max(0, wanted))
            if len(self._ready) >= self._size or not self._running:
                break
            enough = asyncio.FIRST_COMPLETED if self._lag else asyncio.ALL_COMPLETED
            done, self._running = await asyncio.wait(self._running, return_when=enough)
            # Retrieve every exception: asyncio logs those that nobody retrieves.
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
        """Cancel all groups in progress."""
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)
        self._running.clear()

    def _start(self, count: int) -> None:
        for _ in range(count):
            self._running.add(asyncio.ensure_future(self._make(self.position)))
            self.position += 1

    async def _mend(self, batch: Batch) -> None:
        """After an outage, remake the groups that lost rollouts to it."""
        rollouts = [rollout for group in batch.finished for rollout in group.rollouts]
        # The failed share of fewer groups than a step has means little.
        enough = len(batch.finished) >= min(self._size, 4)
        if enough and await self._outage.waited(rollouts, "rollouts"):
            for group in [group for group in batch.finished if None in group.rewards]:
                batch.finished.remove(group)
                if group in self._ready:
                    self._ready.remove(group)
                    self._running.add(asyncio.ensure_future(self._make(group.number)))
                    batch.remade += 1
        batch.failed = sum(group.rewards.count(None) for group in batch.finished)

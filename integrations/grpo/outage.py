"""Outages of the sandboxes' backend: wait for the end, and raise if it does not come."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable

from sandboxkit import ProviderUnavailableError, SandboxError
from sandboxkit.integrations._outages import is_outage
from sandboxkit.integrations._retries import pauses
from sandboxkit.integrations.grpo.config import Grading
from sandboxkit.integrations.grpo.errors import GraderError
from sandboxkit.integrations.grpo.rollout import Rollout

__all__ = ["Outage"]

_log = logging.getLogger("sandboxkit.grpo")


class Outage:
    """Detects outages of one backend and waits for their end. Runs on one event loop.

    `works(seconds)` raises SandboxError if the backend does not work within that time. An outage is a
    share of at least `max_infra_failed_rate` of rollouts to which the backend gave no verdict, among
    those that needed a sandbox. It may last `patience` seconds from its beginning, including failed
    retries.
    """

    def __init__(self, works: Callable[[float], Awaitable[None]], grading: Grading) -> None:
        self._works, self._grading = works, grading
        self._limit, self._patience = grading.max_infra_failed_rate, grading.patience
        self._since: float | None = None
        self._pauses = pauses()

    async def waited(self, rollouts: Iterable[Rollout], what: str) -> bool:
        """If there is an outage, wait for its end and return True: the caller then redoes what failed.

        Raises ProviderUnavailableError if the outage does not end, and GraderError if the grader raised
        for a share of at least `max_raised_rate`, since waiting would not help.
        """
        needed = [rollout for rollout in rollouts if rollout.needed_sandbox]
        raised = [rollout for rollout in needed if rollout.grader_raised]
        if is_outage(len(raised), len(needed), self._grading.max_raised_rate):
            raise GraderError(
                f"{self._grading.grader} raised for {len(raised)} of {len(needed)} {what} that needed a "
                f"sandbox, with grading.max_raised_rate={self._grading.max_raised_rate:g}; the first: "
                f"{raised[0].verdict.detail}"
            )
        broken = [r for r in needed if r.verdict.reward is None and not r.grader_raised]
        if not is_outage(len(broken), len(needed), self._limit):
            self._since, self._pauses = None, pauses()
            return False
        failure = ProviderUnavailableError(
            f"{len(broken)} of {len(needed)} {what} that needed a sandbox had no verdict, with "
            f"grading.max_infra_failed_rate={self._limit:g}; the first: {broken[0].verdict.detail}"
        )
        if not self._patience:
            raise failure
        await self._wait(failure)
        return True

    async def _wait(self, failure: ProviderUnavailableError) -> None:
        begun = time.monotonic()
        if self._since is None:
            self._since = begun
            _log.warning("%s; the backend is waited for", failure)
        why = "a sandbox starts, and what is done in one fails again and again"
        for pause in self._pauses:
            left = self._since + self._patience - time.monotonic()
            if left <= pause:
                break
            await asyncio.sleep(pause)
            try:
                await self._works(left)
            except SandboxError as error:
                why = str(error)
            else:
                waited = time.monotonic() - begun
                _log.warning("the backend starts sandboxes again, after %.0f s", waited)
                return
        failure.add_note(f"for grading.patience={self._patience:g} s it did not end: {why}")
        raise failure

"""Outages of the sandboxes' backend: wait for the end, and raise if it does not come."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable

from sandboxkit import ProviderUnavailableError, SandboxError, Session
from sandboxkit.integrations._outages import is_outage, require_working
from sandboxkit.integrations._retries import pauses
from sandboxkit.integrations.grpo.rollout import Rollout

__all__ = ["Outage"]

_log = logging.getLogger("sandboxkit.grpo")


class Outage:
    """Detects outages of one backend and waits for their end. Runs on one event loop.

    `works(seconds)` raises SandboxError if the backend does not work within that time. An outage is a
    share of at least `limit` of rollouts without a verdict among those that needed a sandbox. It
    may last `patience` seconds from its beginning, including failed retries.
    """

    def __init__(
        self, works: Callable[[float], Awaitable[None]], limit: float, patience: float
    ) -> None:
        self._works, self._limit, self._patience = works, limit, patience
        self._since: float | None = None
        self._pauses = pauses()

    @classmethod
    def of(cls, session: Session, limit: float, patience: float) -> "Outage":
        """Return an Outage for the provider of a session."""
        return cls(lambda within: require_working(session, within), limit, patience)

    async def waited(self, rollouts: Iterable[Rollout], what: str) -> bool:
        """If there is an outage, wait for its end and return True: the caller then redoes what failed.

        Raises ProviderUnavailableError if the outage does not end, or if every failure is a grader
        that raised, since waiting would not help.
        """
        needed = [rollout for rollout in rollouts if rollout.needed_sandbox]
        broken = [rollout for rollout in needed if rollout.verdict.reward is None]
        if not is_outage(len(broken), len(needed), self._limit):
            self._since, self._pauses = None, pauses()
            return False
        failure = ProviderUnavailableError(
            f"{len(broken)} of {len(needed)} {what} that needed a sandbox had no verdict, with "
            f"grading.max_infra_failed_rate={self._limit:g}; the first: {broken[0].verdict.detail}"
        )
        if not self._patience or all(rollout.grader_raised for rollout in broken):
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

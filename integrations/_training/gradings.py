"""Gradings of equal submissions, each made once and shared."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Hashable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from sandboxkit import ConfigurationError, Session
from sandboxkit.integrations._training.clock import Part, Timer
from sandboxkit.integrations.rewards import Grader, Verdict

NO_CODE = "no code in the completion"
"""The detail of the verdict on a completion in which nothing was found to grade."""


@dataclass(frozen=True, slots=True)
class GradedSample:
    """A completion's verdict, and how it came about."""

    verdict: Verdict
    graded: bool = True
    """False for a completion that was refused without grading."""
    seconds: Mapping[Part, float] = field(default_factory=dict)
    remembered: bool = False
    """Whether the verdict is that of an equal completion."""
    grader_raised: bool = False

    @property
    def failed(self) -> bool:
        """Whether the infrastructure failed."""
        return self.verdict.reward is None

    @property
    def needed_sandbox(self) -> bool:
        """Whether the sample counts in the failure rate: it was graded, or failed in the infrastructure."""
        return self.graded or self.failed


# Any: a task is a row of a user's data set, and what a custom grader returns need not be a Verdict.
async def verdict_by(
    grader: Grader, session: Session, code: str, task: Mapping[str, Any]
) -> Verdict:
    """Return the grader's verdict. Raises ConfigurationError if it returns something else."""
    verdict: Any = grader.grade(session, code, task)
    if isinstance(verdict, Awaitable):
        verdict = await verdict
    if not isinstance(verdict, Verdict):
        raise ConfigurationError(
            f"{type(grader).__name__}.grade() returned {verdict!r}: write 'async def grade(self, session, submission, "
            "task)', which returns a Verdict(outcome, score)"
        )
    return verdict


# Any: the send and yield types of a coroutine, not used here.
Judge = Callable[[Callable[[], None]], Coroutine[Any, Any, GradedSample]]
"""Grades a submission; calls its argument when the grading leaves the queue."""


class SharedGradings:
    """Grades each of equal submissions once, and keeps the newest `remember` results.

    If the infrastructure fails, the failure counts for one submission only, and the next equal one is
    graded again: equal ones may be most of a group, and masking all of them would distort its
    baseline. That ends once a submission's gradings took `deadline` seconds. Runs on one event loop;
    `close` cancels the gradings in progress.
    """

    def __init__(self, remember: int, deadline: float) -> None:
        self._remember, self._deadline = remember, deadline
        self._known: dict[Hashable, _Shared] = {}
        self._running: set[asyncio.Task[GradedSample]] = set()
        """The gradings in progress, also of those that `_known` has dropped."""

    async def get(self, key: Hashable, judge: Judge, timer: Timer) -> GradedSample:
        """Return the result of `judge`, or that of an equal `key`. Raises what `judge` raises."""
        key = key if self._remember else object()
        while True:
            timer.enter("queue")
            grading = self._known.get(key)
            own = grading is None
            if grading is None:
                grading = self._known[key] = _Shared(judge)
                self._running.add(grading.task)
                grading.task.add_done_callback(self._running.discard)
            await grading.begun.wait()
            timer.enter("grading")
            sample = await asyncio.shield(grading.task)
            timer.enter("queue")
            if sample.failed and self._known.get(key) is grading:
                del self._known[key]
            late = timer.seconds.get("grading", 0.0) > self._deadline
            if own or late or sample.grader_raised or not sample.failed:
                break
        if len(self._known) > self._remember:
            del self._known[next(iter(self._known))]
        return replace(sample, seconds=timer.seconds, remembered=not own)

    def close(self) -> None:
        """Cancel the gradings in progress."""
        for task in tuple(self._running):
            task.cancel()

    async def aclose(self) -> None:
        """Cancel the gradings in progress, and wait until they have ended."""
        self.close()
        await asyncio.gather(*self._running, return_exceptions=True)


class _Shared:
    """The grading of one submission, shared by all equal ones."""

    def __init__(self, judge: Judge) -> None:
        self.begun = asyncio.Event()
        """Set when the grading leaves the queue."""
        self.task = asyncio.create_task(judge(self.begun.set))
        self.task.add_done_callback(lambda _: self.begun.set())

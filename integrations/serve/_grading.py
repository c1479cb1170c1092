"""Grades several submissions for one task and yields each verdict as soon as it is known."""

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any

from sandboxkit import Session
from sandboxkit.integrations.rewards import Grader, Outcome, Verdict, extract_code

Numbered = tuple[int, Verdict]

_PER_SANDBOX = 2
"""Number of submissions graded concurrently for each sandbox of the pool."""


class GradingQueue:
    """Grades submissions in one session."""

    def __init__(self, session: Session, grader: Grader) -> None:
        self._session, self._grader = session, grader
        # The cases of more submissions would interleave, and all submissions would finish late.
        self._room = asyncio.Semaphore(_PER_SANDBOX * session.pool or 64)

    async def grade(
        self,
        task: Mapping[str, Any],  # Any: JSON, which the grader checks
        submissions: Sequence[str],
        *,
        extract: bool,
        deadline: float,
    ) -> AsyncGenerator[Numbered, None]:
        """Yield the verdict of each submission with its index, in the order in which they finish.

        With `extract` the submissions are completions, from which the code is extracted. Submissions
        without a verdict after `deadline` seconds are cancelled and masked. Closing the generator
        cancels those in progress. Raises ConfigurationError for a task that cannot be graded.
        """
        loop = asyncio.get_running_loop()
        end = loop.time() + deadline
        pending = {
            asyncio.create_task(self._one(index, task, text, extract))
            for index, text in enumerate(submissions)
        }
        left = set(range(len(submissions)))
        try:
            while pending:
                done, pending = await asyncio.wait(
                    pending,
                    timeout=max(0.0, end - loop.time()),
                    return_when=asyncio.FIRST_COMPLETED,
                )
                if not done:
                    break
                for each in done:
                    index, verdict = each.result()
                    left.discard(index)
                    yield index, verdict
        finally:
            for each in pending:
                each.cancel()
            await asyncio.gather(*pending, return_exceptions=True)
        for index in sorted(left):
            detail = f"not graded within deadline={deadline:g} s"
            yield index, Verdict(Outcome.INFRA_ERROR, 0.0, "infra", detail)

    async def _one(self, index: int, task: Mapping[str, Any], text: str, extract: bool) -> Numbered:
        code = extract_code(text) if extract else text
        if code is None:
            return index, Verdict(Outcome.FAILED, 0.0, "policy", "no code in the completion")
        async with self._room:
            return index, await self._grader.grade(self._session, code, task)

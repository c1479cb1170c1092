"""Grades several submissions for one task and yields each verdict as soon as it is known."""

import asyncio
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any

from sandboxkit import Session
from sandboxkit.integrations.rewards import Grader, Outcome, Verdict, extract_code
from sandboxkit.integrations.serve._bodies import check_task
from sandboxkit.integrations.serve._fair_room import FairRoom
from sandboxkit.integrations.serve._workers import Workers

Numbered = tuple[int, Verdict]

_TASK, _TEXTS = 2 << 10, 64 << 10
"""Characters of a task's tests and of completions that are parsed in this process."""


class GradingQueue:
    """Grades submissions in one session."""

    def __init__(self, session: Session, grader: Grader, workers: Workers) -> None:
        self._session, self._grader, self._workers = session, grader, workers
        # The cases of more submissions would interleave, and all would finish late; and what waits in the
        # session's own queue would be ahead of other clients' work.
        self.room = FairRoom(session.pool or 64)

    async def grade(
        self,
        client: str,
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
        check_task(task)
        if prepared := getattr(self._grader, "prepared", None):
            task = await self._workers.run(client, _TASK, prepared, task)
        codes: Sequence[str | None] = submissions
        if extract:
            codes = await self._workers.run(client, _TEXTS, _extracted, submissions)
        pending = {
            asyncio.create_task(self._one(index, client, task, code))
            for index, code in enumerate(codes)
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

    async def _one(
        self, index: int, client: str, task: Mapping[str, Any], code: str | None
    ) -> Numbered:
        if code is None:
            return index, Verdict(Outcome.FAILED, 0.0, "policy", "no code in the completion")
        async with self.room.place(client):
            return index, await self._grader.grade(self._session, code, task)


def _extracted(texts: Sequence[str]) -> list[str | None]:
    return [extract_code(text) for text in texts]

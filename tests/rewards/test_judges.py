"""How many judges' sandboxes there are."""

import asyncio

import pytest

from sandboxkit.integrations.rewards import HostCompare, Limits, grading_session

pytestmark = pytest.mark.anyio


async def test_submissions_that_wait_for_room_need_no_judge() -> None:
    grader = HostCompare(Limits(timeout=60))
    task = {"tests": "def test_it():\n    assert double(4) == 8\n", "names": ["double"]}
    async with grading_session(grader, "local", max_concurrency=2, tags="count:judges") as session:
        code = "def double(n):\n    return 2 * n\n"
        verdicts = await asyncio.gather(*(grader.grade(session, code, task) for _ in range(40)))
        assert all(each.score == 1 for each in verdicts)
        alive = await session.list("count:judges")
        assert len(alive) <= 2 + 1

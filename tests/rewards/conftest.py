"""What the tests of graders share: the providers, and many gradings at once."""

import asyncio
import uuid
from collections.abc import Iterable, Mapping
from typing import Any

import pytest

from sandboxkit import Session
from sandboxkit.integrations.rewards import Grader, Verdict, grading_session
from tests.docker_here import require_docker

CONCURRENCY = 4


@pytest.fixture(params=["local", "docker"])
def provider(request: pytest.FixtureRequest) -> str:
    name = str(request.param)
    if name == "docker":
        require_docker()
    return name


# Any: rows of data sets, and options of a session.
def grade_all(
    provider: str,
    grader: Grader,
    submissions: Iterable[tuple[str, str, Mapping[str, Any]]],
    *,
    in_turn: bool = False,
    concurrency: int = CONCURRENCY,
    **options: Any,
) -> dict[str, Verdict]:
    """Grade (name, code, task) each, in fresh sandboxes or in turn in a few that are reset; none is left."""
    tag = f"rewards-test:{uuid.uuid4().hex}"

    async def run() -> dict[str, Verdict]:
        pool = concurrency if in_turn else 0
        session = grading_session(
            grader, provider, max_concurrency=concurrency, pool=pool, tags=tag, **options
        )
        async with session:
            grades = {name: grader.grade(session, code, task) for name, code, task in submissions}
            verdicts = dict(zip(grades, await asyncio.gather(*grades.values()), strict=True))
        async with Session(provider) as session_after:
            assert await session_after.list(tags=tag) == []
        return verdicts

    return asyncio.run(run())

"""What the tests of graders share: the providers, and many gradings at once."""

import asyncio
import uuid
from collections.abc import Iterable, Mapping
from typing import Any

import pytest

from sandboxkit import Session
from sandboxkit.integrations.rewards import Grader, Verdict
from tests.docker_here import require_docker

CONCURRENCY = 4


@pytest.fixture(params=["local", "docker"])
def provider(request: pytest.FixtureRequest) -> str:
    """Each backend on which graders must hold."""
    name = str(request.param)
    if name == "docker":
        require_docker()
    return name


def grade_all(
    provider: str,
    grader: Grader,
    submissions: Iterable[tuple[str, str, Mapping[str, Any]]],
) -> dict[str, Verdict]:
    """Grade (name, code, task) each, at once; afterwards no sandbox is left."""
    tag = f"rewards-test:{uuid.uuid4().hex}"

    async def run() -> dict[str, Verdict]:
        async with Session(provider, max_concurrency=CONCURRENCY, tags=tag) as session:
            async with asyncio.TaskGroup() as group:
                tasks = {
                    name: group.create_task(grader.grade(session, code, task))
                    for name, code, task in submissions
                }
            verdicts = {name: task.result() for name, task in tasks.items()}
        async with Session(provider) as session:
            assert await session.list(tags=tag) == []
        return verdicts

    return asyncio.run(run())

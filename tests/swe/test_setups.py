"""A task that is set up once: its episodes start from a snapshot and do not see each other."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from sandboxkit import Session, Snapshot
from sandboxkit.integrations.swe import SweConfig, SweEnv, SwePool, Task, TaskSetups, load_tasks
from sandboxkit.testing import FakeProvider
from tests.strangers.tasks import write

pytestmark = pytest.mark.anyio


@pytest.fixture(params=["fake", "local"])
async def session(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> AsyncIterator[Session]:
    """With a state folder of its own, which has no other test's snapshots."""
    monkeypatch.setenv("SANDBOXKIT_STATE_DIR", str(tmp_path_factory.mktemp("state")))
    provider = FakeProvider() if request.param == "fake" else request.param
    async with Session(provider) as session:
        yield session


@pytest.fixture
def tasks(tmp_path: Path) -> dict[str, Task]:
    files = {"environment/seeds/seed": "seed", "setup.sh": "date +%s%N > stamp; ls > found"}
    test = 'test "$(cat seed answer)" = seedright\n'
    write(tmp_path / "a", **files, **{"tests/test.sh": test})
    return load_tasks(tmp_path)


async def snapshots(session: Session) -> list[str]:
    return [info.id async for info in session._provider.list_snapshots({"swe-task": "a"})]


async def test_a_set_up_runs_once_for_episodes(session: Session, tasks: dict[str, Task]) -> None:
    before = await snapshots(session)
    async with TaskSetups(session) as setups:
        pool = SwePool(session, tasks, size=4, setups=setups)

        async def one(number: int) -> tuple[str, float | None]:
            async with pool.episode("a") as (env, _):
                command = f"cat stamp; ls; touch seen-{number}; printf right > answer"
                seen = await env.step("bash", {"command": command})
                end = await env.step("submit", {})
            return seen.observation, end.reward

        results = await asyncio.gather(*(one(number) for number in range(4)))
        assert len({text for text, _ in results}) == 1
        assert "seed" in results[0][0]
        assert "seen" not in results[0][0]
        # FakeProvider runs test.sh, which needs a root of its own, on this machine.
        if session.provider_name == "local":
            assert [reward for _, reward in results] == [1.0] * 4
        assert len(await snapshots(session)) == len(before) + 1
    assert await snapshots(session) == before


async def test_a_set_up_that_is_gone_is_redone(session: Session, tasks: dict[str, Task]) -> None:
    async with TaskSetups(session) as setups, SweEnv(session, tasks, setups=setups) as env:
        await env.reset("a")
        await env.close()
        (taken,) = setups._taken.values()
        assert isinstance(taken, Snapshot)
        await taken.delete()
        step = await env.reset("a")
        assert not step.done
        assert env.metrics.setup_failures == 1


async def test_a_set_up_that_fails_is_tried_again_and_then_masked(
    session: Session, tasks: dict[str, Task], tmp_path: Path
) -> None:
    (tmp_path / "a" / "setup.sh").write_text("exit 3")
    async with TaskSetups(session) as setups:
        config = SweConfig(setup_retries=1)
        async with SweEnv(session, load_tasks(tmp_path), config, setups=setups) as env:
            step = await env.reset("a")
            assert (step.done, step.reward) == (True, None)
            assert env.metrics.setup_failures == 2
    assert await snapshots(session) == []

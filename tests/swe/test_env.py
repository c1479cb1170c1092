"""Episodes: budgets, penalties, failures of the infrastructure, the pool and the plain loop."""

import asyncio
import dataclasses
import http.server
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from sandboxkit import ConfigurationError, Egress, Session
from sandboxkit.integrations.rewards import Outcome
from sandboxkit.integrations.swe import SweConfig, SweEnv, SwePool, Task, load_tasks, run_episode
from tests.data_here import beside
from tests.strangers.tasks import write
from tests.trl.graders import Hanging

pytestmark = pytest.mark.anyio
RIGHT = {"command": "echo right > answer"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    test = 'test "$(cat answer)" = right && test ! -e /tmp/agent-was-here\n'
    for name in ("a", "b"):
        write(tmp_path / name, **{"tests/test.sh": test})
    return tmp_path


@pytest.fixture
def tasks(folder: Path) -> dict[str, Task]:
    return load_tasks(folder)


async def test_tests_come_later_and_elsewhere(session: Session, tasks: dict[str, Task]) -> None:
    async with SweEnv(session, tasks) as env:
        await env.reset("a")
        seen = await env.step("bash", {"command": "ls -d /tests; touch /tmp/agent-was-here"})
        assert "No such file" in seen.observation
        await env.step("bash", RIGHT)
        end = await env.step("submit", "{}")
        assert (end.done, end.reward) == (True, 1.0)
        with pytest.raises(ConfigurationError, match="reset"):
            await env.step("bash", RIGHT)


async def test_in_place_the_tests_see_what_the_agent_left(session: Session, folder: Path) -> None:
    (folder / "a" / "task.toml").write_text("[sandboxkit]\nin_place = true\n")
    async with SweEnv(session, load_tasks(folder)) as env:
        await env.reset("a")
        await env.step("bash", {"command": "echo right > answer; touch /tmp/agent-was-here"})
        assert (await env.step("submit", "{}")).reward == 0.0


async def test_the_budget_ends_the_episode(session: Session, tasks: dict[str, Task]) -> None:
    config = SweConfig(max_steps=3, error_penalty=0.1, unsubmitted_penalty=0.25)
    async with SweEnv(session, tasks, config) as env:
        await env.reset("a")
        assert "the last" not in (await env.step("bash", RIGHT)).observation
        assert "the next call is the last" in (await env.step("nonsense", "{}")).observation
        end = await env.step("bash", {"command": "true"})
        assert end.verdict is not None
        assert (end.done, end.verdict.score) == (True, 1.0)
        assert end.reward == pytest.approx(1 - 0.1 - 0.25)


async def test_the_token_budget_ends_the_episode(session: Session, tasks: dict[str, Task]) -> None:
    async with SweEnv(session, tasks, SweConfig(max_tokens=100)) as env:
        await env.reset("a")
        assert not (await env.step("bash", RIGHT, tokens=99)).done
        assert (await env.step("bash", RIGHT, tokens=1)).done


async def test_calls_that_take_half_of_the_lifetime_end_the_episode(tasks: dict[str, Task]) -> None:
    async with Session("local", lifetime=4) as short:
        async with SweEnv(short, tasks, SweConfig(tool_timeout=2)) as env:
            await env.reset("a")
            end = await env.step("bash", {"command": "sleep 3"})
            assert (end.done, end.reward) == (True, 0.0)
        async with SweEnv(short, tasks, SweConfig(tool_timeout=3)) as env:
            with pytest.raises(ConfigurationError, match="lifetime=4 is too short"):
                await env.reset("a")


async def test_only_the_setup_has_its_network(session: Session, tasks: dict[str, Task]) -> None:
    handler = http.server.SimpleHTTPRequestHandler
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as mirror:
        threading.Thread(target=mirror.serve_forever).start()
        host = f"mirror.test:{mirror.server_port}"
        fetch = f"python3 -c '{beside(__file__)['fetch']}' http://{host}/"
        network = Egress(allow=[host], hosts={"mirror.test": "127.0.0.1"}, private=["127.0.0.1"])
        task = dataclasses.replace(tasks["a"], setup=f"{fetch} > installed", setup_network=network)
        try:
            async with SweEnv(session, {"a": task}) as env:
                await env.reset("a")
                seen = await env.step("bash", {"command": f"cat installed; {fetch}"})
        finally:
            mirror.shutdown()
    assert seen.observation.split()[:2] == ["200", "403"]


async def test_a_setup_network_is_read_from_the_task_and_checked(folder: Path) -> None:
    settings = folder / "a" / "task.toml"
    settings.write_text('[sandboxkit]\nsetup_allow = ["pypi.org"]\n')
    task = load_tasks(folder, allow_network=["pypi.org"])["a"]
    assert task.setup_network == Egress(allow=["pypi.org"])
    with pytest.raises(ConfigurationError, match="network='internet'"):
        dataclasses.replace(task, network="internet")
    settings.write_text('[sandboxkit]\nsetup_allow = ["https://pypi.org"]\n')
    with pytest.raises(ConfigurationError, match=r"https://pypi\.org"):
        load_tasks(folder)


async def test_a_setup_that_fails_is_retried_and_masked(session: Session, folder: Path) -> None:
    (folder / "a" / "setup.sh").write_text("echo broken >&2; exit 3")
    async with SweEnv(session, load_tasks(folder), SweConfig(setup_retries=1)) as env:
        step = await env.reset("a")
        assert step.verdict is not None
        assert (step.reward, step.verdict.outcome) == (None, Outcome.INFRA_ERROR)
        assert "status 3: broken" in step.verdict.detail
        assert (env.metrics.setup_failures, env.metrics.masked) == (2, 1)
        assert not (await env.reset("b")).done


async def test_a_sandbox_that_never_starts_masks_its_episode(tasks: dict[str, Task]) -> None:
    config = SweConfig(start_timeout=0.1, setup_retries=1)
    async with Session(Hanging()) as session, SweEnv(session, tasks, config) as env:
        step = await env.reset("a")
        assert (step.done, step.reward) == (True, None)
        assert step.verdict is not None
        assert "did not start within 0.1 s" in step.verdict.detail


async def test_a_dead_sandbox_masks_its_episode(session: Session, tasks: dict[str, Task]) -> None:
    async with SweEnv(session, tasks) as env:
        await env.reset("a")
        for info in await session.list():
            if info.tags.get("sandboxkit.session") == session.id:
                await (await session.from_id(info.id)).stop()
        step = await env.step("bash", RIGHT)
        assert (step.done, step.reward) == (True, None)


async def test_the_loop_runs_a_policy_in_a_pool(session: Session, tasks: dict[str, Task]) -> None:
    live = most = 0
    two = asyncio.Barrier(2)

    async def policy(messages: Sequence[dict[str, Any]], tools: object) -> dict[str, Any]:
        assert len(tools) == 3  # type: ignore[arg-type]  # a tuple of schemas
        if len(messages) > 1:
            return {"role": "assistant", "content": "done"}
        async with asyncio.timeout(120):
            await two.wait()
        call = {"name": "bash", "arguments": '{"command": "echo right > answer"}'}
        return {"role": "assistant", "tool_calls": [{"id": "1", "function": call}]}

    pool = SwePool(session, tasks, size=2, starts=1)

    async def rollout(task_id: str) -> float | None:
        nonlocal live, most
        async with pool.episode(task_id) as (env, first):
            live += 1
            most = max(most, live)
            episode = await run_episode(env, first, policy)
            live -= 1
        roles = [message["role"] for message in episode.messages]
        assert roles == ["user", "assistant", "tool", "assistant"]
        return episode.reward

    assert await asyncio.gather(*map(rollout, ["a", "b", "a", "b"])) == [1.0] * 4
    assert most == 2
    assert (pool.metrics.episodes, pool.metrics.passed, pool.metrics.submitted) == (4, 4, 0)

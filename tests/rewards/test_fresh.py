"""What an agent leaves in its sandbox does not reach the one in which it is graded."""

import tempfile
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from sandboxkit import Sandbox, Session
from sandboxkit.errors import ConfigurationError, ProviderUnavailableError, SandboxTerminatedError
from sandboxkit.integrations.rewards import HostCompare, Limits, Outcome, Verdict, grade_in_fresh
from tests.rewards.corpus import DATA, read
from tests.rewards.trials import HONEST, TESTS

pytestmark = pytest.mark.anyio
GIVEN = read(DATA / "fresh.toml")
SOLUTION = "/workspace/package/solution.py"
LEFT = "/workspace/left"
Grade = Callable[[Sandbox], Awaitable[Verdict]]


async def never(sandbox: Sandbox) -> Verdict:
    raise AssertionError("nothing to grade")


async def run(path: str, grade: Grade = never, provider: str = "local") -> tuple[Verdict, Sandbox]:
    async with Session(provider) as session:
        agent = session.sandbox()
        await agent.exec(["sh", "-c", GIVEN["hostile"].replace("@HONEST@", HONEST)], check=True)
        verdict = await grade_in_fresh(
            agent, [path], lambda: session.sandbox(profile="strict"), grade
        )
        return verdict, agent


async def test_only_the_named_artefacts_arrive_and_nothing_runs(provider: str) -> None:
    async def grade(sandbox: Sandbox) -> Verdict:
        script = "find /workspace /tmp -mindepth 1 | sort; ps ax 2>/dev/null | grep -c late.py"
        found = (await sandbox.exec(["sh", "-c", script])).stdout.split()
        paths = {path for path in found if path.startswith("/")} - {"/workspace/package/late.py"}
        assert paths == {"/workspace/package", SOLUTION}
        code = (await sandbox.read_file(SOLUTION)).decode()
        async with Session(provider) as session:
            return await HostCompare(Limits(timeout=30)).grade(session, code, {"test_list": TESTS})

    verdict, agent = await run("/workspace/package", grade, provider)
    assert verdict.outcome is Outcome.PASSED
    with pytest.raises(SandboxTerminatedError):
        agent.exec(["true"])


async def test_a_missing_artefact_is_scored() -> None:
    verdict, _ = await run("/workspace/no-such-file")
    assert (verdict.outcome, verdict.reward) == (Outcome.FAILED, 0.0)


@pytest.mark.parametrize(("failures", "reward"), [(2, 1.0), (99, None)])
async def test_failures_are_retried_or_masked(failures: int, reward: float | None) -> None:
    seen: list[str | None] = []

    async def grade(sandbox: Sandbox) -> Verdict:
        await sandbox.start()
        seen.append(sandbox.id)
        if len(seen) <= failures:
            raise ProviderUnavailableError("no answer")
        return Verdict(Outcome.PASSED, 1.0)

    async with Session("local") as session:
        agent = session.sandbox(files={LEFT: b""})
        verdict = await grade_in_fresh(agent, [LEFT], session.sandbox, grade)
    assert verdict.reward == reward
    assert len(set(seen)) == 3


async def left(
    script: str, grade: Grade = never, *, files: dict[str, bytes] | None = None, **options: Any
) -> Verdict:
    """The verdict for what a script made, where 20 MB of it fit beside these files."""
    async with Session("local", disk_mb=20) as session:
        agent = session.sandbox(disk_mb=100)
        await agent.exec(["sh", "-c", script], check=True)
        return await grade_in_fresh(
            agent, [LEFT], lambda: session.sandbox(files=files or {}), grade, **options
        )


@pytest.mark.parametrize(("script", "options"), GIVEN["too_much"])
async def test_artefacts_that_cannot_leave_are_scored(script: str, options: dict[str, Any]) -> None:
    verdict = await left(script, **options)
    assert (verdict.outcome, verdict.reward, verdict.trust) == (Outcome.TRUNCATED, 0.0, "isolated")


async def test_a_path_that_exists_in_the_fresh_sandbox_is_scored() -> None:
    verdict = await left("touch left", files={f"{LEFT}/in/the/way": b""})
    assert verdict.outcome is Outcome.TRUNCATED


async def test_a_fresh_sandbox_that_refuses_its_files_is_masked() -> None:
    assert (await left("touch left", files={"/proc/none": b""})).reward is None


async def test_a_host_without_room_is_masked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", "/no/such/folder")
    assert (await left("touch left")).reward is None


@pytest.mark.parametrize(("command", "timeout", "outcome"), GIVEN["failed"])
async def test_a_failed_command_is_scored(command: str, timeout: float, outcome: str) -> None:
    async def grade(sandbox: Sandbox) -> Verdict:
        await sandbox.exec(["sh", "-c", command], check=True, timeout=timeout)
        raise AssertionError("unreachable")

    verdict = await left("touch left", grade)
    assert (verdict.outcome, verdict.reward) == (outcome, 0.0)


@pytest.mark.parametrize("script", ["printf '\\377' > left", "mkdir left"])
async def test_an_odd_file_is_scored(script: str) -> None:
    async def text(sandbox: Sandbox) -> Verdict:
        (await sandbox.read_file(LEFT)).decode()
        raise AssertionError("unreachable")

    assert (await left(script, text)).outcome is Outcome.FAILED


@pytest.mark.parametrize("path", ["relative", "/", "/.."])
async def test_an_artefact_must_be_an_absolute_path(path: str) -> None:
    with pytest.raises(ConfigurationError, match="artefact"):
        await run(path)

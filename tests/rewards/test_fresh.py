"""What an agent leaves in its sandbox does not reach the one in which it is graded."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from sandboxkit import (
    ConfigurationError,
    ProviderUnavailableError,
    Sandbox,
    SandboxTerminatedError,
    Session,
)
from sandboxkit.integrations.rewards import HostCompare, Limits, Outcome, Verdict, grade_in_fresh
from tests.rewards.cheats import HONEST, TESTS

HOSTILE = f"""
mkdir -p /workspace/package /tmp/evil
cat > /workspace/package/solution.py <<'END'
{HONEST}END
echo 'import os; os._exit(0)' > /workspace/sitecustomize.py
echo 1 > /workspace/reward.txt
ln -s /etc/passwd /workspace/package/stolen
ln -s / /workspace/package/everything
mkfifo /workspace/package/pipe
echo $$ > /tmp/evil/pid
(while true; do echo 'raise SystemExit(0)' > /workspace/package/late.py; sleep 0.02; done) &
"""

Grade = Callable[[Sandbox], Awaitable[Verdict]]


def run(provider: str, artefacts: list[str], grade: Grade) -> tuple[Verdict, Sandbox]:
    async def main() -> tuple[Verdict, Sandbox]:
        async with Session(provider) as session:
            agent = session.sandbox()
            await agent.exec(["sh", "-c", HOSTILE], check=True)
            return (
                await grade_in_fresh(
                    agent, artefacts, lambda: session.sandbox(profile="strict"), grade
                ),
                agent,
            )

    return asyncio.run(main())


def test_only_the_named_artefacts_arrive_and_nothing_runs(provider: str) -> None:
    async def grade(sandbox: Sandbox) -> Verdict:
        script = "find /workspace /tmp -mindepth 1 | sort; ps ax 2>/dev/null | grep -c late.py"
        found = (await sandbox.exec(["sh", "-c", script])).stdout.split()
        paths = {path for path in found if path.startswith("/")} - {"/workspace/package/late.py"}
        assert paths == {"/workspace/package", "/workspace/package/solution.py"}
        code = (await sandbox.read_file("/workspace/package/solution.py")).decode()
        async with Session(provider) as session:
            return await HostCompare(Limits(timeout=30)).grade(session, code, {"test_list": TESTS})

    verdict, agent = run(provider, ["/workspace/package"], grade)
    assert verdict.outcome is Outcome.PASSED
    with pytest.raises(SandboxTerminatedError):
        agent.exec(["true"])


def test_a_missing_artefact_is_the_agents_failure() -> None:
    async def grade(sandbox: Sandbox) -> Verdict:
        raise AssertionError("nothing to grade")

    verdict, _ = run("local", ["/workspace/no-such-file"], grade)
    assert (verdict.outcome, verdict.reward) == (Outcome.FAILED, 0.0)


def test_a_failure_while_grading_is_retried_in_another_sandbox() -> None:
    seen: list[str | None] = []

    async def grade(sandbox: Sandbox) -> Verdict:
        await sandbox.start()
        seen.append(sandbox.id)
        if len(seen) < 3:
            raise ProviderUnavailableError("no answer")
        return Verdict(Outcome.PASSED, 1.0)

    verdict, _ = run("local", ["/workspace/package/solution.py"], grade)
    assert verdict.outcome is Outcome.PASSED
    assert len(set(seen)) == 3


def test_a_failure_that_stays_is_masked() -> None:
    async def grade(sandbox: Sandbox) -> Verdict:
        raise ProviderUnavailableError("no answer")

    verdict, _ = run("local", ["/workspace/package/solution.py"], grade)
    assert verdict.reward is None


@pytest.mark.parametrize("path", ["relative", "/", "/.."])
def test_an_artefact_must_be_an_absolute_path(path: str) -> None:
    async def grade(sandbox: Sandbox) -> Verdict:
        raise AssertionError("nothing to grade")

    with pytest.raises(ConfigurationError, match="artefact"):
        run("local", [path], grade)

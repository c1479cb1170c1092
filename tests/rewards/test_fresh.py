"""What an agent leaves in its sandbox does not reach the one in which it is graded."""

import asyncio
import tempfile
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from sandboxkit import (
    ConfigurationError,
    ProviderUnavailableError,
    Sandbox,
    SandboxTerminatedError,
    Session,
)
from sandboxkit.integrations.rewards import HostCompare, Limits, Outcome, Verdict, grade_in_fresh
from tests.rewards.trials import HONEST, TESTS

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


def test_a_missing_artefact_is_scored() -> None:
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


def test_a_persistent_failure_is_masked() -> None:
    async def grade(sandbox: Sandbox) -> Verdict:
        raise ProviderUnavailableError("no answer")

    verdict, _ = run("local", ["/workspace/package/solution.py"], grade)
    assert verdict.reward is None


async def never(sandbox: Sandbox) -> Verdict:
    raise AssertionError("nothing to grade")


def left(script: str, grade: Grade = never, **options: Any) -> Verdict:
    """The verdict for /workspace/left, made by a script where 20 MB of it fit."""

    async def main() -> Verdict:
        async with Session("local", disk_mb=20) as session:
            agent = session.sandbox(disk_mb=100)
            await agent.exec(["sh", "-c", script], check=True)
            return await grade_in_fresh(
                agent, ["/workspace/left"], session.sandbox, grade, **options
            )

    return asyncio.run(main())


@pytest.mark.parametrize(
    ("script", "options"),
    [
        ("head -c 30000000 /dev/zero > left", {}),
        ("truncate -s 30M left", {}),
        ("truncate -s 250M left", {}),
        ("truncate -s 3M left", {"max_bytes": 1 << 20}),
        ("mkdir left; cd left; touch 1 2 3", {"max_files": 2}),
        (
            "mkdir left; cd left; d=$(printf %099d 0); for n in $(seq 30); do mkdir $d; cd -P $d; done",
            {},
        ),
        ("mkfifo left", {}),
        ("ln -s /etc/passwd left", {}),
        ("mkdir left; chmod 0 left", {}),
    ],
)
def test_an_artefact_that_cannot_be_copied_is_scored(script: str, options: dict[str, Any]) -> None:
    verdict = left(script, **options)
    assert (verdict.outcome, verdict.reward) == (Outcome.TRUNCATED, 0.0)
    assert verdict.trust == "isolated"


def test_a_path_that_exists_in_the_fresh_sandbox_is_scored() -> None:
    async def main() -> Verdict:
        async with Session("local") as session:
            agent = session.sandbox()
            await agent.exec(["touch", "left"], check=True)
            taken = {"/workspace/left/in/the/way": b""}
            return await grade_in_fresh(
                agent, ["/workspace/left"], lambda: session.sandbox(files=taken), never
            )

    assert asyncio.run(main()).outcome is Outcome.TRUNCATED


def test_a_fresh_sandbox_that_refuses_its_files_is_masked() -> None:
    async def main() -> Verdict:
        async with Session("local") as session:
            agent = session.sandbox()
            await agent.exec(["touch", "left"], check=True)
            bad = {"/proc/none": b""}
            return await grade_in_fresh(
                agent, ["/workspace/left"], lambda: session.sandbox(files=bad), never
            )

    assert asyncio.run(main()).reward is None


def test_a_host_without_room_is_masked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", "/no/such/folder")
    assert left("touch left").reward is None


@pytest.mark.parametrize(
    ("command", "timeout", "outcome"),
    [
        (["sleep", "60"], 0.5, Outcome.TIMEOUT),
        (["false"], 60, Outcome.FAILED),
        (["sh", "-c", "kill -9 $$"], 60, Outcome.FAILED),
    ],
)
def test_the_end_of_a_checked_command_is_scored(
    command: list[str], timeout: float, outcome: Outcome
) -> None:
    async def grade(sandbox: Sandbox) -> Verdict:
        await sandbox.exec(command, check=True, timeout=timeout)
        raise AssertionError("unreachable")

    verdict = left("touch left", grade)
    assert (verdict.outcome, verdict.reward) == (outcome, 0.0)


def test_an_odd_file_is_scored() -> None:
    async def text(sandbox: Sandbox) -> Verdict:
        (await sandbox.read_file("/workspace/left")).decode()
        raise AssertionError("unreachable")

    for script in ("printf '\\377' > left", "mkdir left"):
        assert left(script, text).outcome is Outcome.FAILED


@pytest.mark.parametrize("path", ["relative", "/", "/.."])
def test_an_artefact_must_be_an_absolute_path(path: str) -> None:
    async def grade(sandbox: Sandbox) -> Verdict:
        raise AssertionError("nothing to grade")

    with pytest.raises(ConfigurationError, match="artefact"):
        run("local", [path], grade)

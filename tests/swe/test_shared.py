"""Tests beside the code, a test.sh: what the submission does to its verdict never makes it pass."""

from contextlib import suppress
from pathlib import Path

import pytest

from sandboxkit import CommandTimeoutError, ConfigurationError, Sandbox, Session
from sandboxkit.integrations.rewards import Outcome, Verdict
from sandboxkit.integrations.swe import Task, _shared, grade, load_task
from tests.data_here import beside
from tests.strangers.tasks import write
from tests.swe.cheats import SCRIPTS, program
from tests.swe.conftest import USER

pytestmark = pytest.mark.anyio
GIVEN = beside(__file__)
TEST: str = GIVEN["test"]
RIGHT = "echo 'import sys; print(int(sys.argv[1]) + int(sys.argv[2]))' > add.py"
PROVIDERS = ("local", "docker")

# In the agent's own sandbox the tests are run by what the agent left there. The root of an image
# can have changed any of it; a local sandbox's user cannot, and no program that is tested later.
NOT_PROMISED_IN_PLACE = ("docker", "bash overwritten")

_NIGHTLY = pytest.mark.nightly
ATTACKED = [
    ("docker", False),
    pytest.param(USER, False, marks=_NIGHTLY),
    ("local", True),
    pytest.param("docker", True, marks=_NIGHTLY),
]
"""Each time every cheat is tried where it may do most, as the root of an image, and in place."""


def make(folder: Path, test: str = TEST, *, in_place: bool = False, seconds: int = 12) -> Task:
    settings = f"sandboxkit.in_place = {str(in_place).lower()}\nverifier.timeout_sec = {seconds}"
    write(folder, **{"tests/test.sh": test, "task.toml": settings})
    return load_task(folder)


async def work(sandbox: Sandbox, script: str) -> None:
    with suppress(CommandTimeoutError):
        await sandbox.exec(["bash", "-c", script], timeout=10)


async def cheat(session: Session, task: Task, script: str) -> Verdict:
    """The verdict on an agent that does something, and leaves a program that does it again."""
    agent = session.sandbox()
    await agent.write_file("/workspace/add.py", program(script))
    await work(agent, script)
    return await grade(session, task, agent)


@pytest.mark.parametrize("provider", [*PROVIDERS, USER])
@pytest.mark.parametrize("in_place", [False, True], ids=["fresh", "in place"])
async def test_what_is_right_passes(session: Session, tmp_path: Path, in_place: bool) -> None:
    agent = session.sandbox()
    await work(agent, RIGHT)
    verdict = await grade(session, make(tmp_path, in_place=in_place), agent)
    seen = (verdict.outcome, verdict.score, verdict.trust)
    assert seen == (Outcome.PASSED, 1.0, "shared"), verdict


@pytest.mark.parametrize(("provider", "in_place"), ATTACKED)
@pytest.mark.parametrize("name", SCRIPTS)
async def test_no_cheat_passes(
    session: Session, tmp_path: Path, name: str, provider: str, in_place: bool
) -> None:
    verdict = await cheat(session, make(tmp_path, in_place=in_place, seconds=5), SCRIPTS[name])
    assert verdict.trust == "shared" or not in_place  # says it also of those that pass
    if not in_place or (provider, name) != NOT_PROMISED_IN_PLACE:
        assert (verdict.score, verdict.attributable_to) == (0.0, "policy"), verdict


@pytest.mark.parametrize("provider", PROVIDERS)
async def test_the_shell_of_the_tests_is_closed_to_its_own_user(session: Session) -> None:
    look = "python3 -c 'import os; os.readlink(f\"/proc/{os.getppid()}/fd/0\")'; exit $?"
    async with session.sandbox() as sandbox:
        await sandbox.exec(["bash", "-c", _shared._CLOSE.replace("/logs", "/tmp")], check=True)
        assert (await sandbox.exec(["bash", "-c", look])).returncode == 0
        assert (await sandbox.exec(["/tmp/shell", "-c", look])).returncode == 1


@pytest.mark.parametrize("provider", [USER])
async def test_tests_are_out_of_another_users_reach(session: Session, tmp_path: Path) -> None:
    agent = session.sandbox()
    await work(agent, f"{RIGHT}; chmod 755 add.py")
    verdict = await grade(session, make(tmp_path, GIVEN["out_of_reach"]), agent)
    assert verdict.outcome is Outcome.PASSED, verdict


@pytest.mark.parametrize(("test", "outcome", "score"), GIVEN["agree"])
async def test_the_exit_status_and_the_reward_agree(
    session: Session, tmp_path: Path, test: str, outcome: str, score: float
) -> None:
    verdict = await grade(session, make(tmp_path, test), session.sandbox())
    seen = (verdict.outcome, verdict.score, verdict.trust)
    assert seen == (Outcome[outcome], score, "shared"), verdict


@pytest.mark.parametrize("provider", PROVIDERS)
async def test_the_reward_is_read_after_the_last_process(session: Session, tmp_path: Path) -> None:
    """The forger waits for the shell's end, which a reward after the last process does not give."""
    verdict = await grade(session, make(tmp_path, GIVEN["forger"]), session.sandbox())
    assert (verdict.outcome, verdict.score) == (Outcome.FAILED, 0.0), verdict


async def test_artefacts_without_room_are_the_policys(session: Session, tmp_path: Path) -> None:
    task = make(tmp_path)
    (task.tests / "data").write_bytes(bytes(8 << 20))
    async with Session("local", tags=("swe-tests",), disk_mb=40, max_concurrency=1) as session:
        agent = session.sandbox()
        await work(agent, "head -c 37000000 /dev/zero > full")
        verdict = await grade(session, task, agent)
    assert (verdict.outcome, verdict.attributable_to) == (Outcome.TRUNCATED, "policy"), verdict


async def test_tests_that_fit_nowhere_are_not_the_policys(session: Session, tmp_path: Path) -> None:
    task = make(tmp_path)
    (task.tests / "data").write_bytes(bytes(30 << 20))
    async with Session("local", tags=("swe-tests",), disk_mb=20) as session:
        verdict = await grade(session, task, session.sandbox())
    assert (verdict.outcome, verdict.attributable_to) == (Outcome.INFRA_ERROR, "infra"), verdict


@pytest.mark.parametrize("path", ["/tests", "/logs/verifier", "/x/../tests/sub"])
def test_an_artefact_is_not_in_the_way_of_the_tests(tmp_path: Path, path: str) -> None:
    make(tmp_path)
    (tmp_path / "task.toml").write_text(f"[sandboxkit]\nartefacts = ['{path}']\n")
    with pytest.raises(ConfigurationError, match="conflicts with the tests"):
        load_task(tmp_path)

"""The tasks that come with sandboxkit: the reference passes, doing nothing and cheating do not."""

from contextlib import suppress

import pytest

from sandboxkit import CommandTimeoutError, Session
from sandboxkit.integrations.rewards import Outcome
from sandboxkit.integrations.swe import Step, SweEnv, bundled_tasks, grade
from sandboxkit.integrations.swe._grading import make_sandbox
from tests.components import require_program
from tests.swe.cheats import IN_WORKSPACES, SCRIPTS, planted

pytestmark = pytest.mark.anyio
TASKS = bundled_tasks()
ISOLATED = {"parse_logs", "repair_git_history"}
# The Docker image of the tests has no C compiler.
RUNS = [(provider, task) for task in TASKS for provider in ("local", "docker")]
RUNS.remove(("docker", "fix_c_build"))
ONE = ("docker", RUNS[0][1])
"""The run that meets every cheat, as the root of an image; each other run meets one of them."""
FORGERIES = [(*ONE, name) for name in IN_WORKSPACES]
FORGERIES += [(*run, name) for run, name in zip(RUNS, IN_WORKSPACES, strict=False) if run != ONE]
ZEROES = [run for run in RUNS if run[0] == "local" or run == ONE]
"""The runs that must score zero. A grader refuses the same on each provider, so docker grades one task."""


@pytest.fixture
def on(session: Session, task: str) -> Session:
    if task == "fix_c_build":  # its sandbox has the programs of this machine
        require_program("cc")
    return session


async def play(session: Session, task_id: str, solution: str | None) -> tuple[SweEnv, Step]:
    async with SweEnv(session, TASKS) as env:
        first = await env.reset(task_id)
        assert first.observation == TASKS[task_id].instruction
        if solution is not None:
            script = (TASKS[task_id].tests.parent / "solution" / solution).read_text()
            step = await env.step("bash", {"command": script})
            assert not step.done, step
            assert solution == "cheat.sh" or not step.error, step.observation
        return env, await env.step("submit", "{}")


@pytest.mark.parametrize(("provider", "task"), RUNS)
async def test_the_reference_solution_scores_one(on: Session, task: str) -> None:
    _, step = await play(on, task, "solve.sh")
    assert step.verdict is not None
    assert (step.verdict.outcome, step.reward) == (Outcome.PASSED, 1.0), step.verdict
    assert step.verdict.trust == ("isolated" if task in ISOLATED else "shared")


@pytest.mark.parametrize(("provider", "task"), ZEROES)
@pytest.mark.parametrize("solution", [None, "cheat.sh"], ids=["null", "cheat"])
async def test_idleness_and_cheats_score_zero(on: Session, task: str, solution: str | None) -> None:
    env, step = await play(on, task, solution)
    assert step.done
    assert step.reward == 0.0, step.verdict
    assert (env.metrics.episodes, env.metrics.passed, env.metrics.masked) == (1, 0, 0)


@pytest.mark.parametrize(("provider", "task", "name"), FORGERIES)
async def test_no_forged_verdict_is_believed(on: Session, task: str, name: str) -> None:
    agent = make_sandbox(on, TASKS[task])
    if TASKS[task].setup is not None:
        await agent.exec(["bash", "-c", TASKS[task].setup or ""], check=True)
    if TASKS[task].seeds is not None:
        await agent.upload(TASKS[task].seeds or "", "/workspace")
    with suppress(CommandTimeoutError):
        await agent.exec(["bash", "-c", planted(SCRIPTS[name])], timeout=10)
    verdict = await grade(on, TASKS[task], agent)
    assert (verdict.score, verdict.attributable_to) == (0.0, "policy"), verdict

"""A judge.py: its verdict is isolated only if no code of the submission can run where it is decided."""

from pathlib import Path

import pytest

from sandboxkit import Session
from sandboxkit.integrations.rewards import Verdict
from sandboxkit.integrations.swe import grade, load_task
from tests.data_here import beside
from tests.strangers.tasks import write

pytestmark = pytest.mark.anyio
GIVEN = beside(__file__)
GIT = GIVEN["git"]


async def judged(session: Session, folder: Path, judge: str, script: str) -> Verdict:
    name = "test.sh" if judge.startswith("#!") else "judge.py"
    write(folder, **{f"tests/{name}": judge})
    agent = session.sandbox()
    await agent.exec(["bash", "-c", script], check=True)
    return await grade(session, load_task(folder), agent)


@pytest.mark.parametrize(("judge", "trust"), GIVEN["trust"])
async def test_what_a_judge_does_decides_its_level(
    session: Session, tmp_path: Path, judge: str, trust: str
) -> None:
    if "helper" in judge:
        write(tmp_path, **{"tests/helper.py": GIVEN["helper"]})
    assert (await judged(session, tmp_path, judge, "echo 1 > a")).trust == trust


@pytest.mark.parametrize("provider", ["local", "docker"])
@pytest.mark.parametrize("tests", GIVEN["settings"])
async def test_programs_of_tests_have_no_settings_of_the_submission(
    session: Session, tmp_path: Path, tests: str
) -> None:
    verdict = await judged(session, tmp_path, tests, GIVEN["left"])
    assert (verdict.score, verdict.trust) == (1.0, "shared"), verdict


@pytest.mark.parametrize("name", GIT["scripts"])
async def test_git_looks_at_objects_and_not_at_what_a_repository_says(
    session: Session, tmp_path: Path, name: str
) -> None:
    script = GIT["make"] + GIT["scripts"][name]
    verdict = await judged(session, tmp_path, GIT["judge"], script)
    seen = (verdict.score, verdict.attributable_to, verdict.trust)
    assert seen == (float(name.startswith("right")), "policy", "isolated"), verdict


async def test_a_missing_git_is_not_the_policys(session: Session, tmp_path: Path) -> None:
    judge = f"import shutil\nshutil.which = lambda name: None\n{GIT['judge']}"
    assert (await judged(session, tmp_path, judge, GIT["make"])).reward is None


@pytest.mark.parametrize("left", GIVEN["hostile"])
@pytest.mark.parametrize("judge", GIVEN["trusting"])
async def test_no_submission_makes_its_judge_raise(
    session: Session, tmp_path: Path, judge: str, left: str
) -> None:
    verdict = await judged(session, tmp_path, judge, f"cat > a <<'end'\n{left}\nend")
    assert (verdict.score, verdict.attributable_to) == (0.0, "policy"), verdict

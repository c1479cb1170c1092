"""Task folders of Harbor and Terminal-Bench: they load in all shapes, and their solutions have the reward 1."""

import re
from itertools import cycle, islice
from pathlib import Path
from typing import Any

import pytest

from sandboxkit import ConfigurationError, Image, Session
from sandboxkit.integrations.swe import SweEnv, Task, TaskTrial, load_task, load_tasks, try_tasks
from sandboxkit.integrations.swe._grading import make_sandbox
from sandboxkit.integrations.swe._terminal_bench import all_passed
from tests.data_here import beside
from tests.local_here import require_local
from tests.strangers.tasks import write

DATA = beside(__file__)
HARBOR = {"task.toml": "version = '1.0'\n[environment]\n"}
pytestmark = pytest.mark.anyio


def shapes(number: int) -> list[dict[str, Any]]:
    """That many combinations of the parts, all different."""
    kinds = (DATA["dockerfile"], DATA["sizes"], DATA["network"])
    found = list(islice(zip(*map(cycle, kinds), strict=False), number))
    return [
        {
            "files": {
                "environment/Dockerfile": dockerfile["text"],
                "task.toml": f"version = '1.0'\n[environment]\n{sizes['text']}{network['text']}",
                "solution/solve.sh": "true",
            },
            "is": {"disk_mb": 0, **dockerfile["is"], **sizes["is"], **network["is"]},
        }
        for dockerfile, sizes, network in found
    ]


def test_forty_shapes_of_harbors_folders_load_and_can_be_started(tmp_path: Path) -> None:
    made = shapes(40)
    assert len({str(each["files"]) for each in made}) == 40
    for number, each in enumerate(made):
        write(tmp_path / f"t{number:02}", **each["files"])
    tasks = load_tasks(tmp_path, allow_network="internet", env_names=["UNSET"])
    for each, task in zip(made, tasks.values(), strict=True):
        found = {name: getattr(task, name) or 0 for name in each["is"]}
        assert found == each["is"], each
        assert "image" in each["is"] or isinstance(task.image, Image)
    planned = load_tasks(tmp_path, image="default", allow_network="internet", env_names=["UNSET"])
    with Session("local") as session:
        specs = [make_sandbox(session, task).spec for task in planned.values()]
    assert [spec.memory_mb or 0 for spec in specs] == [each["is"]["memory_mb"] for each in made]
    assert [spec.disk_mb or 0 for spec in specs] == [each["is"]["disk_mb"] for each in made]


async def trials(tasks: dict[str, Task], provider: str = "local") -> dict[str, TaskTrial]:
    async with Session(provider) as session:
        return {each.task: each async for each in try_tasks(session, tasks)}


async def test_solutions_have_the_reward_1_and_no_work_0(tmp_path: Path) -> None:
    require_local()
    for name, files in DATA["harbor"].items():
        write(tmp_path / name, **HARBOR | files)
    for name, files in DATA["bench"].items():
        write(tmp_path / name, **files)
        for left_over in ("instruction.md", "tests/test.sh"):
            (tmp_path / name / left_over).unlink()
    tasks = load_tasks(tmp_path, image="default")
    found = await trials(tasks)
    assert {each.status for each in found.values()} == {"fine"}, found
    assert sorted(found) == sorted({**DATA["harbor"], **DATA["bench"]})
    assert {(each.oracle, each.nop) for each in found.values()} == {(1.0, 0.0)}
    bench = tasks["pytest"]
    assert (bench.agent_timeout, bench.test_timeout, bench.workdir) == (180.0, 30.0, "/app")
    assert bench.instruction == "Write 42.\nInto answer.txt."
    assert bench.metadata["difficulty"] == "easy"
    assert load_task(tmp_path / "block").image == "debian:12"
    assert load_task(tmp_path / "pytest").image == "debian:12"


async def test_what_is_wrong_with_a_task_is_told(tmp_path: Path) -> None:
    require_local()
    plain = DATA["harbor"]["plain"]
    paid = "echo 1 >/logs/verifier/reward.txt"
    for name, files in {
        "bought": plain | {"tests/test.sh": paid},
        "refused": plain | {"solution/solve.sh": "echo 41 >answer.txt"},
        "unknown": plain | {"tests/test.sh": "true"},
        "unsolved": {"tests/test.sh": plain["tests/test.sh"]},
    }.items():
        write(tmp_path / name, **HARBOR | files)
    write(tmp_path / "unread", **HARBOR | plain | {"task.toml": "version = '2.0'"})
    refused: dict[str, ConfigurationError] = {}
    found = await trials(load_tasks(tmp_path, image="default", refused=refused))
    assert {name: each.status for name, each in found.items()} == {name: name for name in found}
    assert len(found) == 4
    assert "version '2.0'" in str(refused["unread"])
    with pytest.raises(ConfigurationError, match=r"version '2\.0'"):
        load_tasks(tmp_path, image="default")


@pytest.mark.parametrize("case", DATA["refused"], ids=lambda case: case["says"])
def test_what_terminal_bench_has_and_we_do_not_is_refused(
    tmp_path: Path, case: dict[str, str]
) -> None:
    files = {name: text for name, text in case.items() if name != "says"}
    folder = write(tmp_path / "tasks" / "one", **DATA["bench"]["block"] | files)
    with pytest.raises(ConfigurationError, match=f"one.*{re.escape(case['says'])}"):
        load_task(folder)


@pytest.mark.parametrize("case", DATA["results"], ids=lambda case: case["says"])
def test_results_are_read_as_terminal_bench_reads_them(case: dict[str, Any]) -> None:
    assert all_passed(case["parser"], case["says"]) is case.get("is")


async def test_the_agents_calls_have_the_tasks_time(tmp_path: Path) -> None:
    require_local()
    settings = f"{HARBOR['task.toml']}[agent]\ntimeout_sec = 1.0\n"
    folder = write(tmp_path / "one", **DATA["harbor"]["plain"] | {"task.toml": settings})
    task = load_task(folder, image="default")
    async with Session("local") as session, SweEnv(session, {"one": task}) as env:
        await env.reset("one")
        step = await env.step("bash", {"command": "echo 42 >answer.txt; sleep 100"})
        assert (step.done, step.reward) == (True, 1.0)
        assert not (await env.reset("one")).done
        done = await env.solve()
        assert (done.reward, done.observation) == (1.0, "[exit status 0]")

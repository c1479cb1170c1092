"""Harbor's task folders as our SWE tasks: what a reward is there, and whose fault a missing one."""

import dataclasses
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from sandboxkit import ConfigurationError, Egress, Session
from sandboxkit.integrations.harbor import load_task
from sandboxkit.integrations.rewards import Outcome, Verdict
from sandboxkit.integrations.swe import SweEnv, Task, grade
from tests.docker_here import require_docker
from tests.harbor.tasks import FILES, PHASES, SETTINGS, SOLUTION, STATUS, write
from tests.local_here import require_local

pytestmark = pytest.mark.anyio
OUT = "/logs/verifier"
REFUSED = tomllib.loads((Path(__file__).parent / "refused.toml").read_text())["refused"]
GRADED = tomllib.loads((Path(__file__).parent / "graded.toml").read_text())
NETWORK = SETTINGS.replace("no-network", "public")


async def graded(
    folder: Path, test: str, submission: str = "echo 42 >answer.txt", settings: str = SETTINGS
) -> Verdict:
    folder = write(folder, test=test, settings=settings)
    task = load_task(folder, image="default", allow_network="internet")
    async with Session("local") as session:
        agent = session.sandbox(workdir=task.workdir)
        await agent.exec(["bash", "-c", submission], check=True)
        return await grade(session, task, agent)


@pytest.mark.parametrize("provider", ["local", "docker"])
async def test_an_episode_is_graded_by_the_tests(tmp_path: Path, provider: str) -> None:
    if provider == "local":
        require_local()
    image = "default" if provider == "local" else require_docker()
    task = load_task(write(tmp_path / "answer"), image=image)
    async with Session(provider) as session:
        for script, reward in ((SOLUTION, 1.0), ("cat /tests/test.sh", 0.0)):
            async with SweEnv(session, {"answer": task}) as env:
                await env.reset("answer")
                message = await env.step("bash", {"command": f"(\n{script}\n)"})
                assert ("No such file" in message.observation) == (reward == 0)
                assert (await env.finish()).reward == reward


@pytest.mark.parametrize("case", GRADED["tests"], ids=lambda case: case["does"])
async def test_the_reward_file_decides(tmp_path: Path, case: dict[str, Any]) -> None:
    verdict = await graded(tmp_path / "answer", f"cd {OUT}\n{case['does']}")
    assert verdict.reward == case.get("reward")
    assert (verdict.outcome is Outcome.INFRA_ERROR) == ("reward" not in case), verdict


@pytest.mark.parametrize("case", GRADED["hinders"], ids=str)
async def test_hindering_the_reward_fails(tmp_path: Path, case: dict[str, Any]) -> None:
    test = f"set -e\nbash /job/answer.txt && exit 3\necho 0 >{OUT}/reward.txt\n"
    settings = NETWORK if "network" in case else SETTINGS
    script = f"echo '{case['does']}' >answer.txt"
    verdict = await graded(tmp_path / "answer", test, script, settings)
    assert (verdict.reward, verdict.outcome) == (0.0, Outcome.TAMPERED), verdict


class Flaky(Mapping[str, str]):
    """Variables that lack what the tests need, the first time that somebody asks for them."""

    asked = 0

    def __iter__(self) -> Iterator[str]:
        self.asked += 1
        return iter([] if self.asked == 1 else ["REWARD"])

    def __getitem__(self, name: str) -> str:
        return {"REWARD": "0.5"}[name]

    def __len__(self) -> int:
        return 1


async def test_a_network_failure_in_the_tests_is_masked(tmp_path: Path) -> None:
    folder = write(tmp_path / "a", test=f"echo $REWARD >{OUT}/reward.txt", settings=NETWORK)
    task = load_task(folder, image="default", allow_network="internet")
    task = dataclasses.replace(task, test_env=(flaky := Flaky()))
    async with Session("local") as session:
        agent = session.sandbox(workdir=task.workdir)
        await agent.start()
        assert (await grade(session, task, agent)).reward == 0.5
    assert flaky.asked == 3, "with the submission, without it, and with it once more"


def test_settings_are_those_of_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_KEY", "hush")
    folder = write(tmp_path / "answer", settings=FILES["full"])
    task = load_task(folder, allow_network="internet", env_names=["SECRET_KEY", "NO_SUCH"])
    assert (task.image, task.workdir) == ("sandboxkit/python:3.11", "/job")
    assert (task.memory_mb, task.cpus, task.test_timeout) == (512, 2, 7.0)
    assert (task.network, task.test_network) == ("none", "internet")
    assert (task.env, task.test_env) == ({"HINT": "forty-two"}, {"KEY": "hush", "MODE": "fast"})
    assert task.artefacts == ("/job/out", "/job/more")
    assert task.seeds == tmp_path / "answer" / "environment"
    assert "hush" not in repr(task)


def test_each_phase_has_its_own_network(tmp_path: Path) -> None:
    some = Egress(allow=["some.invalid"])
    task = load_task(write(tmp_path / "a", settings=PHASES), allow_network=["some.invalid"])
    assert (task.network, task.test_network) == ("none", some)
    empty = PHASES.replace('["some.invalid"]', "[]")
    assert load_task(write(tmp_path / "b", settings=empty)).test_network == "none"
    everywhere = PHASES.replace('"allowlist"\nallowed_hosts', '"public"\n#')
    public = write(tmp_path / "c", settings=everywhere)
    assert load_task(public, allow_network="internet").test_network == "internet"
    in_place = load_task(public, in_place=True, allow_network=["internet"])
    assert in_place.test_network == Egress(allow=["*"])


def test_a_task_without_a_network_has_the_sessions_or_what_is_allowed(tmp_path: Path) -> None:
    folder = write(tmp_path / "a", settings=SETTINGS.replace("network_mode", "#"))
    silent, allowed = load_task(folder), load_task(folder, allow_network="internet")
    assert (silent.network, silent.test_network) == (None, None)
    assert (allowed.network, allowed.test_network) == ("internet", "internet")


async def test_in_place_the_network_changes_to_that_of_the_tests(tmp_path: Path) -> None:
    require_local()
    test = f"python3 -c '{STATUS}'\necho 1 >{OUT}/reward.txt"
    folder = write(tmp_path / "a", test=test, settings=PHASES)
    allowed = ["some.invalid"]
    task = load_task(folder, image="default", in_place=True, allow_network=allowed)
    async with Session("local") as session, SweEnv(session, {"a": task}) as env:
        await env.reset("a")
        seen = await env.step("bash", {"command": f"python3 -c '{STATUS}'"})
        assert seen.observation.strip() == "none"
        done = await env.finish()
    assert done.reward == 1.0
    assert done.verdict is not None
    assert "502" in done.verdict.detail, "the name was allowed, and cannot be resolved"


def test_a_dockerfile_that_adds_a_directory_is_an_image(tmp_path: Path) -> None:
    settings = SETTINGS.replace("docker_image", "#").replace("workdir", "#")
    lines = "FROM debian AS one\nWORKDIR /x\nFROM --platform=linux/amd64 debian:12\nWORKDIR /srv\nWORKDIR app\n"
    task: Task = load_task(write(tmp_path / "answer", settings=settings, dockerfile=lines))
    assert (task.image, task.workdir, task.seeds) == ("debian:12", "/srv/app", None)


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: case["says"])
def test_what_has_no_equivalent_is_refused(tmp_path: Path, case: dict[str, str]) -> None:
    folder = write(tmp_path / "a", settings=SETTINGS.replace(case["replace"], case["by"]))
    with pytest.raises(ConfigurationError, match=case["says"]):
        load_task(folder, allow_network="internet", env_names=["NO_SUCH_VARIABLE"])

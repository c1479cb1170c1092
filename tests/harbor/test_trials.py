"""Harbor's own jobs and trials in our sandboxes, where it is installed: `make test-harbor`."""

import asyncio
import json
import os
import shlex
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from sandboxkit import ConfigurationError, Image, ProviderUnavailableError, Sandbox
from sandboxkit.providers.local._provider import LocalBox
from tests.adapters_document import use
from tests.data_here import beside
from tests.docker_here import TEST_IMAGE, require_docker
from tests.frameworks_here import framework
from tests.harbor.tasks import PHASES, SETTINGS, STATUS, write
from tests.strangers.tasks import write as write_files

framework("harbor")

from harbor.agents.nop import NopAgent  # noqa: E402
from harbor.environments.factory import EnvironmentFactory  # noqa: E402
from harbor.models.task.task import Task  # noqa: E402
from harbor.models.trial.config import AgentConfig, EnvironmentConfig, TaskConfig, TrialConfig  # noqa: E402
from harbor.models.trial.paths import TrialPaths  # noqa: E402
from harbor.trial.hooks import TrialEvent  # noqa: E402
from harbor.trial.trial import Trial  # noqa: E402

IMPORT_PATH = "sandboxkit.integrations.harbor.environment:SandboxkitEnvironment"
FOLDERS = beside(__file__, "../swe/test_formats.toml")["harbor"]
ON = {"local": {"provider": "local", "image": "default"}, "docker": {"provider": "docker"}}
pytestmark = [
    pytest.mark.anyio,
    pytest.mark.filterwarnings("ignore:Task.checksum:DeprecationWarning"),  # Harbor's of itself
]


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HARBOR_TELEMETRY", "off")


async def there(provider: str) -> set[str]:
    found = await Sandbox.list(provider=provider)
    return {info.id for info in found if "harbor" in info.tags}


def ours(provider: str) -> EnvironmentConfig:
    """Tasks of Harbor have the internet if they say nothing."""
    kwargs = ON[provider] | {"allow_network": "internet"}
    return EnvironmentConfig(import_path=IMPORT_PATH, kwargs=kwargs)


async def trial(
    folder: Path, task: Path, provider: str, agent: str | None, import_path: str | None = None
) -> Trial:
    given: dict[str, Any] = {"task": TaskConfig(path=task), "trials_dir": folder / "trials"}
    agents = AgentConfig(name=agent, import_path=import_path)
    return await Trial.create(TrialConfig(**given, agent=agents, environment=ours(provider)))


def environment(folder: Path) -> Any:  # Any: untyped here
    read = Task(write(folder / "answer"))
    return EnvironmentFactory.create_environment_from_config(
        config=ours("local"),
        environment_dir=read.paths.environment_dir,
        environment_name="answer",
        session_id="answer__env",
        trial_paths=TrialPaths(folder / "trial"),
        task_env_config=read.config.environment,
    )


@pytest.mark.parametrize("provider", ["local", "docker"])
async def test_a_solution_earns_one_and_nothing_zero(tmp_path: Path, provider: str) -> None:
    if provider == "docker":
        require_docker()
    task = write(tmp_path / "answer")
    for agent, reward in (("oracle", 1), ("nop", 0)):
        result = await (await trial(tmp_path, task, provider, agent)).run()
        assert result.exception_info is None
        assert result.verifier_result.rewards == {"reward": reward}
    assert await there(provider) == set()


@pytest.mark.parametrize("name", ["artifacts", "environments", "health", "helpers", "logs"])
async def test_harbor_gives_the_rewards_that_load_tasks_gives(tmp_path: Path, name: str) -> None:
    """As tests/swe/test_formats.py does without Harbor: 1 for the solution, 0 for nothing."""
    files = {"task.toml": "version = '1.0'\n[environment]\n"} | FOLDERS[name]
    task = write_files(tmp_path / name, **files, **{"environment/Dockerfile": "FROM debian"})
    for agent, reward in (("oracle", 1), ("nop", 0)):
        result = await (await trial(tmp_path, task, "local", agent)).run()
        assert result.exception_info is None
        assert result.verifier_result.rewards["reward"] == reward


class Looking(NopAgent):
    """An agent that looks at the network when it is installed, and when it works."""

    async def setup(self, environment: Any) -> None:  # Any: untyped here, as below
        await environment.exec(f"python3 -c '{STATUS}' >/job/installed")

    async def run(self, instruction: str, environment: Any, context: Any) -> None:
        await environment.exec(f"python3 -c '{STATUS}' >/job/solved")


@pytest.mark.parametrize("mode", ["allowlist", "public"])
async def test_each_phase_of_a_trial_has_its_own_network(tmp_path: Path, mode: str) -> None:
    test = (
        f"#!/bin/bash\ncd /job\npython3 -c '{STATUS}' >tested\n"
        'test "$(echo $(cat installed solved tested))" = "502 403 502"\n'
        "echo $((! $?)) >/logs/verifier/reward.txt\n"
    )
    public = PHASES.replace('"allowlist"\nallowed_hosts', '"public"\n#')
    settings = public if mode == "public" else PHASES
    task = write(tmp_path / "answer", test=test, settings=settings)
    made = await trial(tmp_path, task, "local", None, f"{__name__}:{Looking.__name__}")
    result = await made.run()
    assert result.exception_info is None
    assert result.verifier_result.rewards == {"reward": 1}
    assert await there("local") == set()


async def test_a_task_that_is_public_throughout_has_the_internet(tmp_path: Path) -> None:
    public = SETTINGS.replace("no-network", "public")
    made = await trial(tmp_path, write(tmp_path / "answer", settings=public), "local", "oracle")
    assert made.agent_environment._network_of(made.agent_environment.network_policy) == "internet"


def test_the_documents_command_runs_a_job(tmp_path: Path) -> None:
    argv = shlex.split(use("Harbor").replace("\\\n", "").replace("docker", "local"))
    write(tmp_path / "tasks" / "answer")
    program = Path(sys.executable).with_name(argv[0])
    done = subprocess.run(
        [program, *argv[1:], "--ek", "image=default", "-y", "-q"],
        cwd=tmp_path,
        env=os.environ | {"HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (path,) = (tmp_path / "jobs").glob("*/answer__*/result.json")
    assert json.loads(path.read_text())["verifier_result"]["rewards"] == {"reward": 1.0}


async def test_a_lost_sandbox_is_an_exception_and_no_reward(tmp_path: Path) -> None:
    made = await trial(tmp_path, write(tmp_path / "answer"), "local", "oracle")

    async def lose(event: object) -> None:
        (lost,) = await there("local")
        await (await Sandbox.from_id(lost, provider="local")).stop()

    made.add_hook(TrialEvent.AGENT_START, lose)
    result = await made.run()
    assert result.exception_info.exception_type == "SandboxTerminatedError"
    assert result.verifier_result is None


async def test_a_cancelled_trial_leaves_nothing(tmp_path: Path) -> None:
    slow = write(tmp_path / "answer", solution="#!/bin/bash\nsleep 600\n")
    made = await trial(tmp_path, slow, "local", "oracle")
    begun = asyncio.Event()

    async def begin(event: object) -> None:
        begun.set()

    made.add_hook(TrialEvent.AGENT_START, begin)
    running = asyncio.create_task(made.run())
    waiting = asyncio.create_task(begun.wait())
    await asyncio.wait([running, waiting], return_when=asyncio.FIRST_COMPLETED)
    assert len(await there("local")) == 1
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert await there("local") == set()


async def test_a_failed_stop_is_retried(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    box = environment(tmp_path)
    await box.start(force_build=False)

    async def fails(_: object) -> None:
        raise ProviderUnavailableError("the disk is full")

    with monkeypatch.context() as patched:
        patched.setattr(LocalBox, "delete", fails)
        with pytest.raises(ExceptionGroup):
            await box.stop(delete=True)
    assert await there("local")
    await box.stop(delete=True)
    assert await there("local") == set()


@asynccontextmanager
async def started(folder: Path) -> AsyncIterator[Any]:
    box = environment(folder)
    await box.start(force_build=False)
    try:
        yield box
    finally:
        await box.stop(delete=True)


async def test_commands_have_their_true_outcomes(tmp_path: Path) -> None:
    async with started(tmp_path) as box:
        output = await box.exec("echo $PWD $HINT $MORE; echo err >&2; exit 3", env={"MORE": "x"})
        found = (output.stdout, output.stderr, output.return_code)
        assert found == ("/job forty-two x\n", "err\n", 3)
        assert (await box.exec("pwd", cwd="/tmp", user="root")).stdout == "/tmp\n"
        late = await box.exec("echo early; sleep 600", timeout_sec=1)
        assert (late.stdout, late.return_code) == ("early\n", 124)
        assert (await box.exec("true", cwd="/missing")).return_code == 127
        with pytest.raises(ConfigurationError, match="only user"):
            await box.exec("true", user="somebody")
    with pytest.raises(ConfigurationError, match="stopped"):
        await box.exec("true")


async def test_files_go_both_ways(tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "deep").mkdir(parents=True)
    (source / "deep" / "run.sh").write_text("#!/bin/sh\necho ran\n")
    (source / "deep" / "run.sh").chmod(0o755)
    async with started(tmp_path) as box:
        await box.upload_dir(source, "/job/copy")
        await box.upload_file(source / "deep" / "run.sh", "/job/")
        assert (await box.exec("copy/deep/run.sh; ./run.sh")).stdout == "ran\nran\n"
        await box.download_dir("/job/copy", tmp_path / "back")
        await box.download_file("/job/run.sh", tmp_path / "new" / "one")
        assert await box.is_dir("/job/copy")
        places: dict[str, Any] = {"source_dir": "/job", "target_dir": tmp_path / "less"}
        await box.download_dir_with_exclusions(**places, exclude=["copy"])
        with pytest.raises(FileNotFoundError):
            await box.download_file("/job/missing", tmp_path / "missing")
    for path in ("source/deep/run.sh", "back/deep/run.sh", "new/one"):
        assert (tmp_path / path).read_text() == "#!/bin/sh\necho ran\n"
    assert {path.name for path in (tmp_path / "less").iterdir()} == {"hint.txt", "run.sh"}


async def test_the_impossible_is_refused(tmp_path: Path) -> None:
    private = write(tmp_path / "private", settings=PHASES.replace("some.invalid", "10.0.0.1"))
    with pytest.raises(ValueError, match=r"Egress.allow='10\.0\.0\.1'"):
        await trial(tmp_path, private, "docker", "nop")


async def test_the_dockerfile_of_a_task_is_built(tmp_path: Path) -> None:
    require_docker()
    text = f"FROM {TEST_IMAGE}\nWORKDIR /job\nCOPY hint.txt .\n"
    settings = SETTINGS.replace("docker_image", "#")
    task = write(tmp_path / "built", settings=settings, dockerfile=text)
    result = await (await trial(tmp_path, task, "docker", "oracle")).run()
    await (await Image.from_folder(task / "environment").build("docker")).delete()
    assert result.exception_info is None
    assert result.verifier_result.rewards == {"reward": 1}

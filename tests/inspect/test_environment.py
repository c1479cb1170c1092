"""What the self-check leaves open: users, limits, errors, and whole evaluations."""

import os
import subprocess
import sys
from pathlib import Path

import anyio
import pytest
from inspect_ai import util
from inspect_ai.util import SandboxEnvironment
from inspect_ai.util._sandbox.limits import override_max_exec_output_size

from sandboxkit import ConfigurationError, SandboxError, SandboxTerminatedError, Session
from sandboxkit.integrations.inspect import SandboxkitConfig, SandboxkitSandboxEnvironment

pytestmark = pytest.mark.anyio
ENTRY_POINT = "[inspect_ai]\nsandboxkit = sandboxkit.integrations.inspect\n"


async def test_commands_run_as_another_user(environment: SandboxEnvironment, provider: str) -> None:
    if provider == "local":
        with pytest.raises(util.SandboxUserUnsupportedError, match="only user"):
            await environment.exec(["whoami"], user="nobody")
    else:
        assert (await environment.exec(["whoami"], user="nobody")).stdout == "nobody\n"


async def test_a_long_command_leaves_no_file_and_has_input(environment: SandboxEnvironment) -> None:
    before = (await environment.exec(["ls", "/tmp"])).stdout
    script = 'echo "$# arguments, the last is $(eval echo \\${$#})"; cat; exit 7'
    arguments = ["x" * 65536] * 17 + ["it's"]
    result = await environment.exec(["sh", "-c", script, "sh", *arguments], input="given")
    assert result.stdout.startswith("18 arguments")
    assert result.stdout.endswith("given")
    assert result.returncode == 7
    assert (await environment.exec(["ls", "/tmp"])).stdout == before


async def test_output_past_its_limit_is_an_error_with_some(environment: SandboxEnvironment) -> None:
    with (
        override_max_exec_output_size(1024),
        pytest.raises(util.OutputLimitExceededError) as caught,
    ):
        await environment.exec(["seq", "10000"])
    assert caught.value.truncated_output is not None
    assert caught.value.truncated_output.startswith("1\n2\n")


async def test_a_program_that_exits_with_126_is_an_exit(environment: SandboxEnvironment) -> None:
    assert (await environment.exec(["sh", "-c", "exit 126"])).returncode == 126


async def test_a_dead_sandbox_is_not_a_commands_failure(environment: SandboxEnvironment) -> None:
    await environment.as_type(SandboxkitSandboxEnvironment)._sandbox.stop()
    with pytest.raises(SandboxTerminatedError):
        await environment.exec(["true"])
    with pytest.raises(SandboxTerminatedError):
        await environment.read_file("x")


async def test_a_failed_start_is_reported_and_leaves_nothing(provider: str) -> None:
    config = SandboxkitConfig(provider=provider, image="/no/such/image")
    with pytest.raises(SandboxError, match="/no/such/image"):
        await SandboxkitSandboxEnvironment.sample_init("test", config, {})


async def test_a_cancelled_start_leaves_nothing(provider: str) -> None:
    with anyio.move_on_after(0.01):
        config = SandboxkitConfig(provider=provider)
        environments = await SandboxkitSandboxEnvironment.sample_init("test", config, {})
        await SandboxkitSandboxEnvironment.sample_cleanup("test", None, environments, True)


async def test_a_config_of_another_kind_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"other\.yaml': No such file"):
        await SandboxkitSandboxEnvironment.sample_init("test", "other.yaml", {})
    with pytest.raises(ConfigurationError, match="unknown provider 'podman'"):
        await SandboxkitSandboxEnvironment.sample_init("test", "podman", {})
    with pytest.raises(ValueError, match="memory_gb"):
        SandboxkitSandboxEnvironment.config_deserialize({"memory_gb": 1})


@pytest.mark.parametrize("text", ["services: {default: {}}", "- provider", "provider: [", "3"])
async def test_a_file_that_says_something_else_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "sandbox.yaml"
    path.write_text(text)
    with pytest.raises(ConfigurationError, match=r"sandbox\.yaml.*fields of SandboxkitConfig"):
        await SandboxkitSandboxEnvironment.sample_init("test", str(path), {})


async def test_a_file_in_the_tasks_folder_has_the_options(tmp_path: Path) -> None:
    name = str(tmp_path / SandboxkitSandboxEnvironment.config_files()[0])
    Path(name).write_text("provider: local\nenv: {A: '1'}\nworkdir: /tmp/work\n")
    environments = await SandboxkitSandboxEnvironment.sample_init("test", name, {})
    try:
        result = await environments["default"].exec(["sh", "-c", "echo $A; pwd"])
        assert result.stdout == "1\n/tmp/work\n"
    finally:
        await SandboxkitSandboxEnvironment.sample_cleanup("test", name, environments, False)


@pytest.mark.parametrize("name", ["Dockerfile", "compose.yaml"])
async def test_a_task_of_inspects_own_docker_sandbox_is_refused(name: str, tmp_path: Path) -> None:
    assert name in SandboxkitSandboxEnvironment.config_files()
    (tmp_path / name).write_text("FROM debian\n")
    for config in (name, "local"):
        with pytest.raises(ConfigurationError, match=f"{tmp_path}/{name} describes this task's"):
            await SandboxkitSandboxEnvironment.sample_init("test", str(tmp_path / config), {})
    (tmp_path / "sandboxkit.yaml").write_text("image: /no/such/image\n")
    with pytest.raises(ConfigurationError, match="/no/such/image"):
        await SandboxkitSandboxEnvironment.sample_init("test", str(tmp_path / "local"), {})


@pytest.fixture
def declared(tmp_path: Path) -> Path:
    """A folder that declares the entry point, as an installed distribution does."""
    info = tmp_path / "declared-1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: declared\nVersion: 1\n")
    (info / "entry_points.txt").write_text(ENTRY_POINT)
    return tmp_path


def test_an_evaluation_finds_its_entry_point_and_leaves_none(provider: str, declared: Path) -> None:
    given = declared / "sandbox.yaml"
    given.write_text(f"provider: {provider}\n")
    config = provider if provider == "local" else str(given)
    # In a process of its own: Inspect leaves streams open, with its own "local" sandbox too.
    done = subprocess.run(
        [sys.executable, "-m", "tests.inspect.evaluation", f"sandboxkit:{config}", str(declared)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(declared), *filter(None, sys.path)])},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    *sandboxes, score = done.stdout.split()
    assert score == "accuracy=1.0"
    assert len(set(sandboxes)) == 2  # one for each sample
    with Session(provider) as session:
        there = {info.id for info in session.list().result()}
    assert not there & set(sandboxes)

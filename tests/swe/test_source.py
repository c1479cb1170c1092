"""Where tasks come from, and what is said of those that cannot be read."""

import os
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

from sandboxkit import ConfigurationError, Image, Session
from sandboxkit.integrations.swe import SweEnv, bundled_tasks, load_task, load_tasks
from tests.data_here import beside
from tests.docker_here import TEST_IMAGE, require_docker
from tests.strangers.tasks import write


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SANDBOXKIT_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_six_tasks_come_with_sandboxkit() -> None:
    names = "cli_from_spec fix_c_build fix_data_pipeline fix_intervals parse_logs"
    assert sorted(bundled_tasks()) == [*names.split(), "repair_git_history"]


def test_a_folder_holds_tasks_and_is_a_task(tmp_path: Path) -> None:
    write(tmp_path / "all" / "one", **{"image.txt": "python:3.12\n", "setup.sh": "true"})
    seeded = write(tmp_path / "all" / "two", **{"environment/seeds/a.txt": "a"})
    tasks = load_tasks(tmp_path / "all")
    assert list(tasks) == ["one", "two"]
    one = tasks["one"]
    assert (one.image, one.setup, one.seeds) == ("python:3.12", "true", None)
    assert tasks["two"].seeds == seeded / "environment" / "seeds"
    assert list(load_tasks(seeded)) == ["two"]


def test_harbor_s_layout_is_read(tmp_path: Path) -> None:
    task = load_task(write(tmp_path / "harbor", **beside(__file__)["harbor"]))
    assert (task.image, task.workdir, task.test_timeout) == ("debian:bookworm", "/app", 900.0)
    assert (task.cpus, task.memory_mb, task.in_place) == (2, 512, True)
    assert task.artefacts == ("/app/out",)


def test_a_judge_is_preferred_to_a_test_beside_the_code(tmp_path: Path) -> None:
    folder = write(tmp_path / "both", **{"tests/judge.py": "def test_it():\n    pass\n"})
    assert load_task(folder).judged
    (folder / "tests" / "judge.py").unlink()
    assert not load_task(folder).judged


@pytest.mark.anyio
async def test_a_dockerfile_is_built_unless_an_image_is_named(tmp_path: Path) -> None:
    require_docker()
    files = {
        "environment/Dockerfile": f"FROM {TEST_IMAGE}\nRUN echo built > /made\nWORKDIR /app\n",
        "tests/test.sh": "cat /app/answer /made",
    }
    folder = write(tmp_path / "built", **files)
    task = load_task(folder)
    assert isinstance(task.image, Image)
    async with Session("docker") as session, SweEnv(session, {"built": task}) as env:
        await env.reset("built")
        seen = await env.step("bash", {"command": "pwd; cat /made; touch answer"})
        done = await env.finish()
    snapshot = await task.image.build("docker", network=task.build_network)
    await snapshot.delete()
    assert (seen.observation.split(), done.reward) == (["/app", "built"], 1.0)
    write(folder, **{"task.toml": "[environment]\ndocker_image = 'mine:1'\n"})
    assert load_task(folder).image == "mine:1"


def test_an_archive_is_unpacked_once(tmp_path: Path, cache: Path) -> None:
    write(tmp_path / "src" / "one")
    archive = tmp_path / "tasks.tar.gz"
    with tarfile.open(archive, "w:gz") as tar:
        tar.add(tmp_path / "src", "tasks")
    assert list(load_tasks(archive)) == ["one"]
    before = sorted(cache.rglob("*"))
    assert list(load_tasks(archive)) == ["one"]
    assert sorted(cache.rglob("*")) == before


def test_a_missing_part_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="no folder or archive"):
        load_tasks(tmp_path / "nowhere")
    with pytest.raises(ConfigurationError, match=r"no folder with an instruction\.md"):
        load_tasks(tmp_path)
    folder = write(tmp_path / "bare")
    (folder / "tests" / "test.sh").unlink()
    neither = r"task 'bare': .* neither .*judge\.py nor .*test\.sh"
    with pytest.raises(ConfigurationError, match=neither):
        load_task(folder)
    (folder / "instruction.md").unlink()
    with pytest.raises(ConfigurationError, match=r"task 'bare': there is no .*instruction\.md"):
        load_task(folder)
    write(folder)
    write(folder, **{"task.toml": "verifier = 3"})
    with pytest.raises(ConfigurationError, match=r"\[verifier\] is not a table"):
        load_task(folder)


@pytest.mark.parametrize("leaves", [False, True])
def test_a_repository_is_read_from_its_snapshot(tmp_path: Path, leaves: bool) -> None:
    commit = "0123456789abcdef0123456789abcdef01234567"
    repository = tmp_path / "hub" / "datasets--someone--tasks"
    one = write(repository / "snapshots" / commit / "tasks" / "one")
    if leaves:
        (one / "secret").symlink_to("/etc/passwd")
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(commit)
    # Of its own process: huggingface_hub reads the environment when it is imported.
    hub = {"HF_HUB_CACHE": str(tmp_path / "hub"), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", beside(__file__)["repository"]],
        env=os.environ | hub,
        capture_output=True,
        text=True,
    )
    found = "hf:someone/tasks: a link leaves" if leaves else "one"
    said = [found, "hf:someone/others@v1 cannot be fetched"]
    assert done.stdout.splitlines() == said, done.stderr

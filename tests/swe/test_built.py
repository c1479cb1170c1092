"""Tasks whose images are built without a network: their environment, their users, and their rewards."""

import secrets
from pathlib import Path

import pytest

from sandboxkit import ConfigurationError, Image, Session
from sandboxkit.integrations.swe import load_task, load_tasks
from sandboxkit.integrations.swe._grading import make_sandbox
from tests.data_here import beside
from tests.docker_here import TEST_IMAGE
from tests.images.test_dockerfiles import base
from tests.rewards.conftest import provider
from tests.strangers.tasks import write
from tests.swe.test_formats import trials

__all__ = ["base", "provider"]  # fixtures
TASKS = beside(__file__)
pytestmark = pytest.mark.anyio


def written(folder: Path, name: str) -> Path:
    files = {key: text.replace("BASE", TEST_IMAGE) for key, text in TASKS[name].items()}
    return write(folder / name, **files, **{"environment/unique": secrets.token_hex(8)})


async def test_built_images_grade_their_solutions(provider: str, tmp_path: Path) -> None:
    names = [name for name in TASKS if provider == "docker" or name != "users"]
    for name in names:
        written(tmp_path, name)
    tasks = load_tasks(tmp_path)
    try:
        found = await trials(tasks, provider)
    finally:
        for task in tasks.values():
            assert isinstance(task.image, Image)
            await (await task.image.build(provider, network="none")).delete()
    assert {name: (each.oracle, each.nop) for name, each in found.items()} == dict.fromkeys(
        names, (1.0, 0.0)
    ), found


async def test_local_refuses_users_that_it_lacks(tmp_path: Path) -> None:
    task = load_task(written(tmp_path, "users"), image="default")
    async with Session("local") as session:
        with pytest.raises(ConfigurationError, match="user='1234'"):
            make_sandbox(session, task)

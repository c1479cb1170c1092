"""Tasks of somebody else: their folders, images and rows reach nothing of this machine but themselves."""

import dataclasses
import os
from pathlib import Path

import pytest

from sandboxkit import ConfigurationError, Egress, Image, Session
from sandboxkit.images import RegistryImage, image_on
from sandboxkit.integrations.harbor import load_task as load_harbor
from sandboxkit.integrations.swe import SweEnv, load_task, load_tasks
from sandboxkit.integrations.swe._grading import make_sandbox
from sandboxkit.types import Dockerfile
from tests.data_here import beside
from tests.strangers.tasks import CANARY, in_time, link, packed, put, write

CASES = beside(__file__)

pytestmark = pytest.mark.usefixtures("task_cache")


IMAGES = CASES["images"]


@pytest.mark.parametrize("image", IMAGES)
@pytest.mark.parametrize("where", ["image.txt", "task.toml", "Dockerfile", "harbor"])
def test_an_image_that_is_no_registry_s_is_refused(tmp_path: Path, image: str, where: str) -> None:
    quoted = "".join(f"\\U{ord(letter):08x}" for letter in image)
    files = {
        "image.txt": {"image.txt": image + "/x" * (image == "debian\n")},
        "Dockerfile": {"environment/Dockerfile": f"FROM {image}"},
    }.get(where, {"task.toml": f'[environment]\ndocker_image = "{quoted}"\n'})
    load = load_harbor if where == "harbor" else load_task
    folder = write(tmp_path / "task", **{"task.toml": "", **files})
    if where == "Dockerfile" and image in ("debian\n", "debian --privileged"):
        image = "-"
        (folder / "environment" / "Dockerfile").write_text("FROM -")
    with pytest.raises(
        ConfigurationError, match=r"task.*not the name of an image of a registry"
    ) as refused:
        load(folder)
    assert "\x1b" not in str(refused.value)


@pytest.mark.parametrize("base", [*IMAGES[:15], "home/../.."])
def test_from_names_an_image_of_a_registry(tmp_path: Path, base: str) -> None:
    (tmp_path / "Dockerfile").write_text(f"FROM {base}\n")
    with pytest.raises(
        ConfigurationError, match=r"line 1: FROM.*not the name of an image of a registry"
    ):
        Image.from_dockerfile(tmp_path / "Dockerfile")


@pytest.mark.parametrize(("image", "on_local", "on_docker"), CASES["names"])
def test_a_name_of_a_registry_is_no_path_and_no_image_id_anywhere(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    image: str,
    on_local: str | None,
    on_docker: str | None,
) -> None:
    (tmp_path / "home" / "usr").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    name = load_task(write(tmp_path / "task", **{"image.txt": image})).image
    assert isinstance(name, RegistryImage)
    assert name == image.removeprefix("docker://")
    assert image_on("local", name) == (on_local or f"docker://{name}")
    tagged = ":" in image.rpartition("/")[2]
    assert image_on("docker", name) == (on_docker or (name if tagged else f"{name}:latest"))
    assert image_on("e2b", name) == name
    (tmp_path / "Dockerfile").write_text(f"FROM {image}\n")
    file = Image.from_dockerfile(tmp_path / "Dockerfile").base
    assert isinstance(file, Dockerfile)
    assert isinstance(file.base, RegistryImage)


def test_on_local_a_task_s_image_is_pulled_and_the_caller_s_own_is_a_folder(tmp_path: Path) -> None:
    (tmp_path / "home" / "usr").mkdir(parents=True)
    task = load_task(write(tmp_path / "task", **{"image.txt": "home"}))
    own = dataclasses.replace(task, image=str(tmp_path / "home"))
    with Session("local") as session:
        assert make_sandbox(session, task).spec.image == "docker://home"
        assert make_sandbox(session, own).spec.image == str(tmp_path / "home")


@pytest.mark.parametrize("kind", CASES["hostile"])
@pytest.mark.parametrize("alone", [True, False], ids=["alone", "in a collection"])
def test_hostile_folders_are_refused(tmp_path: Path, outside: Path, kind: str, alone: bool) -> None:
    folder = write(tmp_path / "tasks" / "one")
    for entry in CASES["hostile"][kind]:
        put(folder, outside, *entry)
    with in_time(), pytest.raises(ConfigurationError, match=r"one|no folder") as refused:
        load_tasks(folder if alone else folder.parent)
    assert CANARY not in str(refused.value)


@pytest.mark.parametrize("kind", CASES["harbor"])
def test_a_task_of_harbor_gets_no_network_and_no_variable_by_its_own_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setenv("HF_TOKEN", CANARY)
    toml = f'[environment]\ndocker_image = "debian:12"\n{CASES["harbor"][kind]}\n'
    folder = write(tmp_path / "one", **{"task.toml": toml})
    with pytest.raises(ConfigurationError, match="one") as refused:
        load_harbor(folder, env_names="HF_TOKEN" if "secret" in kind else ())
    assert CANARY not in str(refused.value)


def test_callers_list_networks_variables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "given")
    toml = (
        '[environment]\ndocker_image = "debian:12"\nenv = { A = "${HF_TOKEN}" }\n'
        'network_mode = "allowlist"\nallowed_hosts = ["pypi.org"]\n'
    )
    folder = write(tmp_path / "one", **{"task.toml": toml})
    task = load_harbor(folder, allow_network=["pypi.org"], env_names=["HF_TOKEN"])
    assert (task.network, task.env) == (Egress(allow=["pypi.org"]), {"A": "given"})
    with pytest.raises(ConfigurationError, match=r"allow_network=\['pypi\.org'\]"):
        load_harbor(folder, allow_network="pypi.org.evil", env_names=["HF_TOKEN"])
    with pytest.raises(ConfigurationError, match=r"env_names=\['HF_TOKEN'\]"):
        load_harbor(folder, allow_network="internet")


@pytest.mark.parametrize(
    "name", ["environment", "environment/Dockerfile", "tests", "instruction.md"]
)
def test_harbors_loader_reads_no_link_that_leaves(tmp_path: Path, outside: Path, name: str) -> None:
    folder = write(tmp_path / "one", **{"task.toml": '[environment]\ndocker_image = "debian"\n'})
    link(folder, name, outside)
    with pytest.raises(ConfigurationError, match="outside"):
        load_harbor(folder)


def test_a_task_that_is_a_link_out_of_its_set_is_refused(tmp_path: Path, outside: Path) -> None:
    write(tmp_path / "tasks" / "one")
    link(tmp_path / "tasks", "two", outside)
    with pytest.raises(ConfigurationError, match=r"two.*outside"):
        load_tasks(tmp_path / "tasks")
    link(tmp_path / "other" / "set", "two", outside)
    with pytest.raises(ConfigurationError, match=r"two.*outside"):
        load_tasks(tmp_path / "other")
    link(tmp_path / "third", "tasks.tar.gz", outside / "secret")
    with pytest.raises(ConfigurationError, match="outside"):
        load_tasks(tmp_path / "third")
    (tmp_path / "fourth").mkdir()
    os.mkfifo(tmp_path / "fourth" / "tasks.tar.gz")
    with in_time(), pytest.raises(ConfigurationError, match="not a file"):
        load_tasks(tmp_path / "fourth")


@pytest.mark.parametrize("name", ["a\nb", "\x1b]0;owned\x07", "a\u202eb", "a\udcffb", "x" * 201])
def test_a_name_that_a_terminal_would_obey_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigurationError, match="printable name") as refused:
        load_tasks(write(tmp_path / name).parent)
    assert str(refused.value).isprintable()


def test_what_a_task_may_have_is_bounded_by_the_session(tmp_path: Path) -> None:
    task = load_task(
        write(tmp_path / "one", **{"task.toml": "[sandboxkit]\n[environment]\nmemory_mb = 1000\n"})
    )
    with Session("local", memory_mb=1000) as session:
        assert make_sandbox(session, task).spec.memory_mb == 1000
    refused = pytest.raises(ConfigurationError, match="task 'one' asks for memory_mb=1000")
    with Session("local", memory_mb=999) as session, refused:
        make_sandbox(session, task)


def test_honest_links_inside_a_folder_work(tmp_path: Path) -> None:
    folder = write(tmp_path / "tasks" / "one", **{"docs/task.md": "Linked.", "common/a": "seed"})
    write(tmp_path / "tasks" / "two", **{"environment/seeds/bin/python": ""})
    link(folder, "instruction.md", "docs/task.md")
    link(folder, "environment/seeds", "../common")
    link(folder, "common/latest", "a")
    link(tmp_path / "tasks" / "two", "environment/seeds/bin/python", "/usr/bin/python3")
    link(tmp_path / "tasks", "three", "two")
    (tmp_path / "given").symlink_to(tmp_path / "tasks")
    tasks = load_tasks(tmp_path / "given")
    assert list(tasks) == ["one", "three", "two"]
    assert tasks["one"].instruction == "Linked."
    assert tasks["one"].seeds == (folder / "common").resolve()
    assert b"seed" in packed(tasks["one"])
    (tmp_path / "alone").symlink_to(folder)
    assert load_task(tmp_path / "alone").instruction == "Linked."


@pytest.mark.anyio
async def test_a_link_in_seeds_is_a_link_in_the_sandbox_and_leads_to_nothing_of_this_machine(
    tmp_path: Path, outside: Path
) -> None:
    folder = write(tmp_path / "one")
    link(folder, "environment/seeds/leak", outside / "secret")
    link(folder, "tests/leak", outside / "secret")
    task = load_task(folder)
    assert CANARY.encode() not in packed(task)
    async with Session("local") as session, SweEnv(session, {"one": task}) as env:
        await env.reset("one")
        seen = await env.step("bash", {"command": "cat leak; ls -l"})
        assert CANARY not in seen.observation
        assert "leak ->" in seen.observation
        assert (await env.finish()).reward == 1.0


def test_a_stage_is_the_image_that_it_is_made_from(tmp_path: Path) -> None:
    lines = "FROM debian:12 AS base\nFROM base\nWORKDIR /app\n"
    task = load_task(write(tmp_path / "one", **{"environment/Dockerfile": lines}))
    assert (task.image, task.workdir) == ("debian:12", "/app")

"""Images from recipes: built once, found again by their content, and what a failed build says and leaves."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pip
import pytest

from sandboxkit import Image, Sandbox, Session, Snapshot
from sandboxkit._life._state_folder import state_folder
from sandboxkit.errors import ConfigurationError, ImageBuildError, SandboxTerminatedError
from sandboxkit.images import _lock
from sandboxkit.images._build import TAG
from sandboxkit.providers.kubernetes import KubernetesProvider
from tests.data_here import beside
from tests.docker_here import require_docker
from tests.rewards.conftest import provider

__all__ = ["provider"]  # a fixture
DATA = beside(__file__, "images.toml")


@pytest.fixture
def recipe(tmp_path: Path) -> Iterator[Image]:
    """A recipe that no other test has, with a folder and a step that counts how often it ran."""
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / "tool.py").write_text("print('from the image')\n")
    (tmp_path / "app" / "token").write_text(os.urandom(8).hex())
    made = Image().copy(tmp_path / "app", "/workspace/app").run("date +%N > /workspace/app/built")
    yield made
    for each in images():
        each.delete().result(60)


def images() -> list[Snapshot]:
    kept = Snapshot.list(provider="local").result(60)
    if os.environ.get("SANDBOXKIT_DOCKER_IMAGE"):
        kept += Snapshot.list(provider="docker").result(60)
    return [each for each in kept if each.tags.get("images-test") == str(os.getpid())]


TAGS = {"images-test": str(os.getpid())}


def output(provider: str, snapshot: Snapshot, *argv: str) -> str:
    with Session(provider, snapshot=snapshot) as session:
        return session.run(argv, check=True).result(60).stdout


def test_an_image_is_built_once_and_serves_other_recipes(provider: str, recipe: Image) -> None:
    lines: list[str] = []
    first = recipe.build(provider, tags=TAGS, progress=lines.append).result(120)
    assert [line.split()[0] for line in lines] == ["[1/2]", "[2/2]"]
    built = output(provider, first, "cat", "/workspace/app/built")
    lines.clear()
    assert recipe.build(provider, tags=TAGS, progress=lines.append).result(60).id == first.id
    longer = recipe.run("python3 /workspace/app/tool.py")
    second = longer.build(provider, tags=TAGS, progress=lines.append).result(120)
    assert lines == ["[3/3] RUN python3 /workspace/app/tool.py", "from the image"]
    assert second.parent == first.id
    assert output(provider, second, "cat", "/workspace/app/built") == built


def test_changed_content_is_another_image(recipe: Image, tmp_path: Path) -> None:
    first = recipe.build("local", tags=TAGS).result(60)
    (tmp_path / "app" / "tool.py").write_text("print('changed')\n")
    second = recipe.build("local", tags=TAGS).result(60)
    (tmp_path / "app" / "tool.py").chmod(0o755)
    third = recipe.build("local", tags=TAGS).result(60)
    other_user = recipe.build("local", tags=TAGS, profile="strict").result(60)
    assert len({first.id, second.id, third.id, other_user.id}) == 4


def test_content_that_changes_during_a_build_is_in_no_image(recipe: Image, tmp_path: Path) -> None:
    def change(line: str) -> None:
        if line == "begun":
            (tmp_path / "app" / "tool.py").write_text("print('changed')\n")

    slow = Image().run("echo begun").copy(tmp_path / "app", "/workspace/app")
    with pytest.raises(ImageBuildError, match=r"step 2 of 2 .* changed during the build"):
        slow.build("local", tags=TAGS, progress=change).result(60)
    assert images() == []


def test_the_default_image_is_a_part_of_it(recipe: Image, monkeypatch: pytest.MonkeyPatch) -> None:
    own = require_docker()
    monkeypatch.delenv("SANDBOXKIT_DOCKER_IMAGE")
    named = Image(own, recipe.steps).build("docker", tags=TAGS).result(120)
    monkeypatch.setenv("SANDBOXKIT_DOCKER_IMAGE", own)
    assert recipe.build("docker", tags=TAGS).result(120).id == named.id


def test_an_image_that_expires_too_soon_is_built_again(recipe: Image) -> None:
    first = recipe.build("local", tags=TAGS, ttl=3600).result(60)
    assert recipe.build("local", tags=TAGS, ttl=7000).result(60).id == first.id
    assert recipe.build("local", tags=TAGS, ttl=7400).result(60).id != first.id


def test_a_failed_step_is_named_and_leaves_nothing(provider: str, recipe: Image) -> None:
    failing = recipe.run("seq 100; echo no such thing >&2; exit 3").run("true")
    with pytest.raises(ImageBuildError) as caught:
        failing.build(provider, tags=TAGS).result(120)
    message = str(caught.value)
    assert message.startswith("step 3 of 4 of the image ended with status 3\n  82\n")
    last = "100\n  no such thing\n  in: RUN seq 100; echo no such thing >&2; exit 3"
    assert message.endswith(last)
    with pytest.raises(ImageBuildError, match=r"step 3 of 3 .* did not end within 0\.5 s"):
        recipe.run("sleep 60", timeout=0.5).build(provider, tags=TAGS).result(60)
    with pytest.raises(SandboxTerminatedError, match="lifetime") as ended:
        Image().run("sleep 60").build(provider, tags=TAGS, lifetime=10).result(60)
    assert ended.value.__notes__ == ["in step 1 of 1 of the image: RUN sleep 60"]
    assert images() == []
    assert Sandbox.list(tags=TAGS, provider=provider).result(60) == []


@pytest.fixture
def builder(recipe: Image, tmp_path: Path) -> Iterator[Callable[..., "subprocess.Popen[str]"]]:
    """Start a process that builds an image, and stands still once its progress is at `stop_at`."""
    made = list["subprocess.Popen[str]"]()

    def start(stop_at: str = "never") -> "subprocess.Popen[str]":
        tag = f"images-test:{os.getpid()}"
        argv = [sys.executable, "-c", DATA["builder"], str(tmp_path / "app"), tag, stop_at]
        made.append(subprocess.Popen(argv, stdout=subprocess.PIPE, text=True))
        return made[-1]

    yield start
    for each in made:
        with each:
            each.kill()


def lock_of(image: Snapshot) -> Path:
    return state_folder() / f"image-{image.tags[TAG]}.lock"


def test_of_processes_that_build_at_once_one_runs_the_steps(
    builder: Callable[..., "subprocess.Popen[str]"],
) -> None:
    builders = [builder() for _ in range(4)]
    outputs = [each.communicate(timeout=120)[0].splitlines() for each in builders]
    assert len({lines[-1] for lines in outputs}) == 1
    assert sum("[2/2] RUN sleep 1" in lines for lines in outputs) == 1
    (image,) = images()
    assert not lock_of(image).exists()


def test_a_builder_that_is_killed_leaves_its_build_to_the_next(
    recipe: Image,
    builder: Callable[..., "subprocess.Popen[str]"],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    killed = builder("[2/2]")
    assert killed.stdout is not None
    for line in killed.stdout:
        if line.startswith("[2/2]"):
            break
    waiting = builder()
    assert waiting.stdout is not None
    assert waiting.stdout.readline().startswith("another build of this image is in progress")
    monkeypatch.setattr(_lock, "_SLACK", 0.5)
    same = Image(None, recipe.steps[:1]).run("sleep 1")
    with pytest.raises(ImageBuildError, match=f"process {killed.pid}, .* within 1.5 s"):
        same.build("local", tags=TAGS, lifetime=1.0).result(60)
    killed.kill()
    killed.communicate(timeout=60)
    lines = waiting.communicate(timeout=120)[0].splitlines()
    assert waiting.returncode == 0
    assert "[2/2] RUN sleep 1" in lines
    (image,) = images()
    assert image.id == lines[-1]
    assert not lock_of(image).exists()


def test_pip_and_apt_install_packages(recipe: Image, tmp_path: Path) -> None:
    require_docker()
    for name, text in DATA["package"].items():
        (tmp_path / "app" / name).write_text(text)
    local = recipe.pip("/workspace/app").build("local", tags=TAGS, network="none").result(300)
    assert output("local", local, "python3", "-c", DATA["answer"]) == "42\n"
    made = recipe.run(DATA["deb"]).apt("/demo.deb")
    made = made.copy(Path(pip.__file__).parent, "/usr/lib/python3/dist-packages/pip")
    docker = made.pip("/workspace/app").build("docker", tags=TAGS, user="root", network="none")
    assert output("docker", docker.result(300), "dpkg-query", "-W", "demo") == "demo\t1\n"
    assert output("docker", docker.result(300), "python3", "-c", DATA["answer"]) == "42\n"


def test_bad_input_is_refused_before_anything_is_made(tmp_path: Path) -> None:
    for call, words in (
        (lambda: Image().run(""), "command=''"),
        (lambda: Image().run("true", timeout=0), "timeout=0"),
        (lambda: Image().apt(), "packages is empty"),
        (lambda: Image().apt("--purge"), "packages='--purge'"),
        (lambda: Image().build("local", ttl=-1), "ttl=-1"),
        (lambda: Image().build("local", image="x"), r"Image\(base\)"),
        (lambda: Image().build("local", files={"/x": b""}), r"use copy\(\)"),
        (lambda: Image().build("local", tags={TAG: "x"}), "tags="),
        (lambda: Image().build("local", reuse="reset", profile="strict"), "reuse="),
        (lambda: Image().build(KubernetesProvider(claims="pool")), "claims='pool'"),
        (lambda: Image().copy(tmp_path / "none", "/x").build("local").result(60), "none"),
    ):
        with pytest.raises(ConfigurationError, match=words):
            call()

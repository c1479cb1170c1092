"""Dockerfiles are built by docker and buildah, and mean for sandboxes what they mean there."""

import io
import secrets
import shutil
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sandboxkit import Egress, Image, Session
from sandboxkit.errors import ConfigurationError, ImageBuildError
from sandboxkit.providers import _builders
from sandboxkit.testing import FakeProvider
from sandboxkit.types import Dockerfile
from tests.components import require_program
from tests.data_here import beside
from tests.docker_here import TEST_IMAGE, require_docker
from tests.images.test_images import TAGS, images
from tests.rewards.conftest import provider

__all__ = ["provider"]  # a fixture
DATA = beside(__file__, "dockerfiles.toml")
SECONDS = 300.0


@pytest.fixture(autouse=True, scope="module")
def base() -> None:
    """Give each builder the base, for there is no registry."""
    require_docker()
    if shutil.which("buildah"):
        name = f"docker.io/{TEST_IMAGE}"
        found = subprocess.run(["buildah", "inspect", "--type=image", name], capture_output=True)
        if found.returncode:
            subprocess.run(["buildah", "pull", f"docker-daemon:{TEST_IMAGE}"], check=True)


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A context that no other test has, whose images are removed in the end."""
    for name, text in DATA["files"].items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    with tarfile.open(tmp_path / "packed.tar", "w") as packed:
        member = tarfile.TarInfo("inner")
        member.size = len(b"from the archive\n")
        packed.addfile(member, io.BytesIO(b"from the archive\n"))
    (tmp_path / "unique").write_text(secrets.token_hex(8))
    yield tmp_path
    for each in images():
        each.delete().result(60)


def image(folder: Path, text: str, **options: Any) -> Image:  # Any: those of from_dockerfile
    (folder / "Dockerfile").write_text(text)
    return Image.from_dockerfile(folder / "Dockerfile", **options)


def test_a_dockerfile_is_built_once_and_honoured(provider: str, folder: Path) -> None:
    made = image(folder, DATA["complete"], args={"VERSION": "3.11", "WORD": "given"})
    lines: list[str] = []
    snapshot = made.build(provider, network="none", tags=TAGS, progress=lines.append).result(
        SECONDS
    )
    for note in DATA["notes"]:
        assert any(note in line for line in lines[: len(DATA["notes"])]), note
    with Session(provider, snapshot=snapshot) as session:
        shown = session.run(["bash", "-c", DATA["show"]]).result(60).stdout
    # All files are the sandbox's own on local, and it has one user.
    owners = (
        "sandbox sandbox sandbox sandbox" if provider == "local" else "www-data root root www-data"
    )
    assert shown == DATA["shown"].lstrip() + "\n".join((*owners.split(), ""))
    lines.clear()
    again = made.build(provider, network="none", tags=TAGS, progress=lines.append).result(60)
    assert again.id == snapshot.id
    longer = made.run("cat /srv/app/tool").build(provider, tags=TAGS, progress=lines.append)
    assert longer.result(60).parent == snapshot.id
    assert lines == ["[1/1] RUN cat /srv/app/tool", "tools 3.11"]
    assert _left_of_builds() == []


def _left_of_builds() -> list[str]:
    """Return what builders still have under the names of builds."""
    programs = [each for each in ("docker", "buildah") if shutil.which(each)]
    found = [subprocess.check_output([each, "images"], text=True) for each in programs]
    return [line for text in found for line in text.splitlines() if "sandboxkit-built" in line]


@pytest.mark.parametrize(("text", "words"), DATA["failing"].items())
def test_a_failing_instruction_is_named(provider: str, folder: Path, text: str, words: str) -> None:
    made = image(folder, text)
    with pytest.raises(ImageBuildError, match=f"(?s){words}"):
        made.build(provider, tags=TAGS, lifetime=15).result(SECONDS)
    assert images() == []
    assert _left_of_builds() == []


@pytest.mark.parametrize(("text", "words"), DATA["refused"].items())
def test_a_dockerfile_is_refused_with_its_line(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(ConfigurationError, match=words):
        image(tmp_path, text)


def test_what_no_builder_here_can_build_is_refused_with_its_line(folder: Path) -> None:
    made = image(
        folder, f"FROM {TEST_IMAGE}\nRUN <<EOF\n false\nEOF\nRUN --mount=type=cache,target=/c true"
    )
    old = _builders.Builder("docker 20.10 without BuildKit", ("docker",), is_classic=True)
    newer = _builders.Builder("buildah 1.28.2", ("buildah",))
    newest = _builders.Builder("buildah 1.33.0", ("buildah",), heredocs=True)
    assert isinstance(made.base, Dockerfile)
    with pytest.raises(ConfigurationError) as refused:
        _builders.chosen([old, newer], made.base)
    assert "buildah 1.28.2 cannot build line 2: RUN with a here-document" in str(refused.value)
    assert _builders.chosen([old, newest], made.base) is newest
    cached = image(folder, f"FROM {TEST_IMAGE}\nRUN --mount=type=cache,target=/c true")
    assert isinstance(cached.base, Dockerfile)
    assert _builders.chosen([old, newer], cached.base) is newer
    assert old.lacks(cached.base) == "line 2: RUN '--mount=type=cache,target=/c'"


def test_docker_loads_what_buildah_builds(folder: Path) -> None:
    require_program("buildah")
    made = image(
        folder, f"FROM {TEST_IMAGE}\nRUN --mount=type=tmpfs,target=/c pwd > /made\nWORKDIR /x"
    )
    with Session("docker", snapshot=made.build("docker", tags=TAGS).result(SECONDS)) as session:
        assert session.run(["sh", "-c", "pwd; cat /made"]).result(60).stdout == "/x\n/\n"


def test_a_provider_without_a_builder_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = image(tmp_path, "FROM python:3.11")
    monkeypatch.chdir(tmp_path)
    assert Image.from_dockerfile("Dockerfile") == made
    with pytest.raises(ConfigurationError, match="secrets='id=a'"):
        Image.from_folder(tmp_path, secrets="id=a")
    with pytest.raises(ConfigurationError, match="network="):
        made.build("docker", network=Egress(allow=["pypi.org"]))
    with pytest.raises(ConfigurationError, match=r"builds no Dockerfiles.*docker push"):
        made.build(FakeProvider()).result(60)


def test_a_strangers_flags_and_lines_are_read_in_linear_time(folder: Path) -> None:
    """Otherwise these take longer than the test may."""
    flags = "--chown=" * 5000 + " --mount=x"
    file = image(folder, f"FROM {TEST_IMAGE}\nCOPY {flags} a b\n").base
    assert isinstance(file, Dockerfile)
    assert "line 2: COPY" in _builders.Builder("classic", (), is_classic=True).lacks(file)
    assert _builders._FAILED.fullmatch(" > [" + "1" * 200_000) is None

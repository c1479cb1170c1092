"""Archives of tasks and Dockerfiles of somebody else write and read nothing outside of their folders."""

import dataclasses
import gzip
import io
import os
import subprocess
import sys
import tarfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from sandboxkit import ConfigurationError, Image
from sandboxkit.errors import ImageBuildError
from sandboxkit.images._dockerfile import digest
from sandboxkit.integrations.swe import _source, load_tasks
from sandboxkit.providers import _builders
from sandboxkit.types import Dockerfile
from tests.data_here import beside
from tests.docker_here import TEST_IMAGE, require_docker
from tests.strangers.layouts import member, tar
from tests.strangers.tasks import CANARY, SECONDS, in_time, link, put, write

pytestmark = [pytest.mark.anyio, pytest.mark.usefixtures("task_cache")]


CASES = beside(__file__)


def realpath_overflow(outside: Path) -> list[Any]:
    """Lead tarfile's data filter out, as in CVE-2025-4517."""
    path, steps, members = "", "abcdefghijklmnop", list[Any]()
    for step in steps:
        members.append(member(os.path.join(path, "d" * 247), tarfile.DIRTYPE))
        members.append(member(os.path.join(path, step), tarfile.SYMTYPE, "d" * 247))
        path = os.path.join(path, "d" * 247)
    end = os.path.join("/".join(steps), "l" * 254)
    return [
        *members,
        member(end, tarfile.SYMTYPE, "../" * len(steps)),
        member("escape", tarfile.SYMTYPE, f"{end}/{'../' * 16}{str(outside)[1:]}"),
        member("hard", tarfile.LNKTYPE, "escape/secret"),
        (member("hard"), b"overwritten"),
    ]


def through(target: str) -> list[Any]:
    return [member("t/way", tarfile.SYMTYPE, target), (member("t/way/secret"), b"overwritten")]


ARCHIVES: dict[str, Callable[[Path], list[Any]]] = {
    "realpath": realpath_overflow,
    "through an absolute link": lambda outside: through(str(outside)),
    "through a relative link": lambda outside: through("../" * 40 + str(outside)[1:]),
    "deep": lambda outside: [member("/".join("d" * 100))],
    "long": lambda outside: [member("n" * 300)],
}


def hostile(outside: Path, kind: str) -> list[Any]:
    """The members of a hostile archive. OUT stands for the folder outside."""
    if kind in ARCHIVES:
        return ARCHIVES[kind](outside)
    name, letters, target = (*CASES["archives"][kind], "REG", "")[:3]
    return [member(name, getattr(tarfile, f"{letters}TYPE"), target.replace("OUT", str(outside)))]


@pytest.mark.parametrize("kind", [*ARCHIVES, *CASES["archives"]])
def test_a_hostile_archive_reaches_nothing(tmp_path: Path, outside: Path, kind: str) -> None:
    tests = [(member("t/tests/test.sh"), b"true")] if "linked tests" not in kind else []
    (tmp_path / "tasks.tar.gz").write_bytes(gzip.compress(tar([*tests, *hostile(outside, kind)])))
    before = {path: path.read_bytes() for path in outside.rglob("*") if path.is_file()}
    with in_time(), pytest.raises(ConfigurationError):
        load_tasks(tmp_path / "tasks.tar.gz")
    assert before == {path: path.read_bytes() for path in outside.rglob("*") if path.is_file()}


@pytest.mark.skipif(
    sys.version_info >= (3, 11, 13) or not hasattr(tarfile, "data_filter"),
    reason="this Python's data filter is mended, or it has none",
)
def test_the_escape_is_real_with_this_pythons_data_filter(tmp_path: Path, outside: Path) -> None:
    with tarfile.open(fileobj=io.BytesIO(tar(realpath_overflow(outside)))) as archive:
        archive.extractall(tmp_path / "into", filter="data")
    assert (outside / "secret").read_text() == "overwritten"


def test_no_bomb_is_read(tmp_path: Path, task_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert _source._LIMITS.max_files == 200_000
    monkeypatch.setattr(_source, "_LIMITS", dataclasses.replace(_source._LIMITS, max_files=1000))

    large = member("large")
    large.size = 5 << 30
    many = tar(member(f"{number}", tarfile.SYMTYPE, "x") for number in range(1001))
    for name, content in (("many", many), ("large", large.tobuf())):
        archive = tmp_path / f"{name}.tar.gz"
        archive.write_bytes(gzip.compress(content, 1))
        with pytest.raises(ConfigurationError, match="not a readable"):
            load_tasks(archive)
    assert list((task_cache / "tasks").iterdir()) == []


def test_an_honest_archive_keeps_its_links_and_programs(tmp_path: Path) -> None:
    source = write(tmp_path / "src" / "one", **{"environment/seeds/v1/run.sh": "true"})
    seeds = source / "environment" / "seeds"
    (seeds / "v1" / "run.sh").chmod(0o755)
    (seeds / "latest").symlink_to("v1")
    (seeds / "python").symlink_to("/usr/bin/python3")
    os.link(seeds / "v1" / "run.sh", seeds / "same")
    for mode, form in (("w:gz", tarfile.PAX_FORMAT), ("w", tarfile.GNU_FORMAT)):
        with tarfile.open(tmp_path / f"{form}.tar.gz", mode, format=form) as made:  # type: ignore[call-overload]  # a literal
            made.add(tmp_path / "src", "tasks")
        kept = load_tasks(tmp_path / f"{form}.tar.gz")["one"].seeds
        assert kept is not None
        assert os.readlink(kept / "latest") == "v1"
        assert os.readlink(kept / "python") == "/usr/bin/python3"
        assert (kept / "same").read_text() == "true"
        assert os.access(kept / "latest" / "run.sh", os.X_OK)


@pytest.mark.parametrize("line", CASES["contexts"])
@pytest.mark.parametrize("builder", ["docker", "buildah"])
async def test_a_dockerfile_copies_its_context_alone(
    tmp_path: Path, outside: Path, line: str, builder: str
) -> None:
    require_docker()
    (tmp_path / "context").mkdir()
    for entry in CASES["contexts"][line]:
        put(tmp_path / "context", outside, *entry)
    text = f"FROM {TEST_IMAGE}\n{line}\nRUN ! grep -rq {CANARY} /x || echo leaked\n"
    (tmp_path / "context" / "Dockerfile").write_text(text)
    file, lines = Image.from_folder(tmp_path / "context").base, list[str]()
    assert isinstance(file, Dockerfile)
    if CASES["contexts"][line][0][0] == "pipe":  # a builder would wait for its content
        with pytest.raises(ConfigurationError, match="is no file, folder or link"):
            digest(file)
        return
    for each in await getattr(_builders, builder)():
        with suppress(ImageBuildError):
            await _builders.build(each, file, "sandboxkit-built:hostile", "none", lines.append)
            subprocess.run([builder, "rmi", "sandboxkit-built:hostile"], check=True)
    assert "leaked" not in lines
    assert any(line in each for each in lines), lines


def test_a_dockerfile_that_is_a_pipe_or_leads_out_is_refused(tmp_path: Path, outside: Path) -> None:
    (tmp_path / "context").mkdir()
    os.mkfifo(tmp_path / "context" / "pipe")
    link(tmp_path / "context", "way", outside / "secret")
    for name in ("pipe", "way", "missing"):
        with in_time(), pytest.raises(ConfigurationError, match=name):
            Image.from_dockerfile(tmp_path / "context" / name)
    with in_time(), pytest.raises(ConfigurationError, match="not a file"):
        Image().copy(tmp_path / "context" / "pipe", "/x").build("local").result(SECONDS)

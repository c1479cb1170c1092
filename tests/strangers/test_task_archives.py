"""Archives of tasks and Dockerfiles of somebody else write and read nothing outside of their folders."""

import dataclasses
import io
import json
import os
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sandboxkit import ConfigurationError, Image
from sandboxkit.integrations.swe import _source, load_tasks
from tests.strangers.tasks import SECONDS, in_time, link, put, write

pytestmark = pytest.mark.usefixtures("task_cache")


Tar = tarfile.TarFile


def member(
    tar: Tar, name: str, kind: bytes = tarfile.REGTYPE, target: str = "", data: str = ""
) -> None:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.size = kind, target, len(data)
    tar.addfile(info, io.BytesIO(data.encode()))


def realpath_overflow(tar: Tar, outside: Path) -> None:
    """Lead tarfile's data filter out, as in CVE-2025-4517."""
    path, steps = "", "abcdefghijklmnop"
    for step in steps:
        member(tar, os.path.join(path, "d" * 247), tarfile.DIRTYPE)
        member(tar, os.path.join(path, step), tarfile.SYMTYPE, "d" * 247)
        path = os.path.join(path, "d" * 247)
    end = os.path.join("/".join(steps), "l" * 254)
    member(tar, end, tarfile.SYMTYPE, "../" * len(steps))
    member(tar, "escape", tarfile.SYMTYPE, f"{end}/{'../' * 16}{str(outside)[1:]}")
    member(tar, "hard", tarfile.LNKTYPE, "escape/secret")
    member(tar, "hard", data="overwritten")


def through(target: Callable[[Path], str]) -> Callable[[Tar, Path], None]:
    def build(tar: Tar, outside: Path) -> None:
        member(tar, "t/way", tarfile.SYMTYPE, target(outside))
        member(tar, "t/way/secret", data="overwritten")

    return build


# Any: what JSON is.
CASES: dict[str, Any] = json.loads(Path(__file__).with_suffix(".json").read_text())
ARCHIVES: dict[str, Callable[[Tar, Path], None]] = {
    "realpath": realpath_overflow,
    "through an absolute link": through(str),
    "through a relative link": through(lambda outside: "../" * 40 + str(outside)[1:]),
    "deep": lambda tar, outside: member(tar, "/".join("d" * 100)),
    "long": lambda tar, outside: member(tar, "n" * 300),
}


def fill(tar: Tar, outside: Path, kind: str) -> None:
    """Write a hostile archive. OUT stands for the folder outside."""
    if kind in ARCHIVES:
        return ARCHIVES[kind](tar, outside)
    name, letters, target = (*CASES["archives"][kind], "REG", "")[:3]
    member(tar, name, getattr(tarfile, f"{letters}TYPE"), target.replace("OUT", str(outside)))


@pytest.mark.parametrize("kind", [*ARCHIVES, *CASES["archives"]])
def test_a_hostile_archive_writes_and_reads_nothing_outside(
    tmp_path: Path, outside: Path, kind: str
) -> None:
    with tarfile.open(tmp_path / "tasks.tar.gz", "w:gz") as tar:
        if "linked tests" not in kind:
            member(tar, "t/tests/test.sh", data="true")
        fill(tar, outside, kind)
    before = {path: path.read_bytes() for path in outside.rglob("*") if path.is_file()}
    with in_time(), pytest.raises(ConfigurationError):
        load_tasks(tmp_path / "tasks.tar.gz")
    assert before == {path: path.read_bytes() for path in outside.rglob("*") if path.is_file()}


@pytest.mark.skipif(sys.version_info >= (3, 11, 13), reason="this Python's data filter is mended")
def test_the_escape_is_real_with_the_data_filter_of_this_python(
    tmp_path: Path, outside: Path
) -> None:
    with tarfile.open(tmp_path / "t.tar", "w") as tar:
        realpath_overflow(tar, outside)
    with tarfile.open(tmp_path / "t.tar") as tar:
        tar.extractall(tmp_path / "into", filter="data")
    assert (outside / "secret").read_text() == "overwritten"


def test_bombs_are_refused_before_they_fill_the_disk(
    tmp_path: Path, task_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert _source._LIMITS.max_files == 200_000
    monkeypatch.setattr(_source, "_LIMITS", dataclasses.replace(_source._LIMITS, max_files=1000))

    def many(tar: Tar) -> None:
        for number in range(1001):
            member(tar, f"{number}", tarfile.SYMTYPE, "x")

    def large(tar: Tar) -> None:
        info = tarfile.TarInfo("large")
        info.size = 5 << 30
        tar.fileobj.write(info.tobuf())

    for build in (many, large):
        archive = tmp_path / f"{build.__name__}.tar.gz"
        with tarfile.open(archive, "w:gz", compresslevel=1) as tar:
            build(tar)
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
        with tarfile.open(tmp_path / f"{form}.tar.gz", mode, format=form) as tar:  # type: ignore[call-overload]  # a literal
            tar.add(tmp_path / "src", "tasks")
        made = load_tasks(tmp_path / f"{form}.tar.gz")["one"].seeds
        assert made is not None
        assert os.readlink(made / "latest") == "v1"
        assert os.readlink(made / "python") == "/usr/bin/python3"
        assert (made / "same").read_text() == "true"
        assert os.access(made / "latest" / "run.sh", os.X_OK)


@pytest.mark.parametrize("line", CASES["contexts"])
def test_a_dockerfile_copies_nothing_from_outside_of_its_context(
    tmp_path: Path, outside: Path, line: str
) -> None:
    (tmp_path / "context").mkdir()
    for entry in CASES["contexts"][line]:
        put(tmp_path / "context", outside, *entry)
    (tmp_path / "context" / "Dockerfile").write_text(f"FROM default\n{line}\n")
    with in_time(), pytest.raises(ConfigurationError) as refused:
        Image.from_dockerfile(tmp_path / "context" / "Dockerfile")
    assert str(refused.value).isprintable()


def test_a_dockerfile_that_is_a_pipe_or_leads_out_is_refused(tmp_path: Path, outside: Path) -> None:
    (tmp_path / "context").mkdir()
    os.mkfifo(tmp_path / "context" / "pipe")
    link(tmp_path / "context", "way", outside / "secret")
    for name in ("pipe", "way", "missing"):
        with in_time(), pytest.raises(ConfigurationError, match=name):
            Image.from_dockerfile(tmp_path / "context" / name)
    with in_time(), pytest.raises(ConfigurationError, match="not a file"):
        Image().copy(tmp_path / "context" / "pipe", "/x").build("local").result(SECONDS)


def test_a_dockerfile_copies_through_links_within_its_context(tmp_path: Path) -> None:
    write(tmp_path, **{"app/tool.py": "print()", "Dockerfile": "FROM debian:12\nCOPY tool /bin/\n"})
    (tmp_path / "tool").symlink_to("app/tool.py")
    (step,) = Image.from_dockerfile(tmp_path / "Dockerfile").steps
    assert step.text == f"COPY {tmp_path.resolve()}/app/tool.py /bin/tool"

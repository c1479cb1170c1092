"""The option `mounts`: which folders and values it takes."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sandboxkit import ConfigurationError, Dataset, SandboxSpec, Session, _spec
from sandboxkit.providers.local import LocalProvider
from sandboxkit.providers.local import _spec as local
from sandboxkit.testing import FakeProvider


@pytest.fixture
def dataset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Dataset:
    monkeypatch.setenv("SANDBOXKIT_STATE_DIR", str(tmp_path / "state"))
    (tmp_path / "source").mkdir()
    return Dataset(tmp_path / "source")


@pytest.mark.parametrize(
    ("points", "workdir", "why"),
    [
        (["data"], None, "relative; use an absolute path"),
        (["/a/../data"], None, r"contains '\.\.'"),
        (["/data/"], None, "write '/data', the shortest form"),
        (["//data"], None, "write '/data', the shortest form"),
        (["/"], None, "would hide '/tmp'"),
        (["/proc/data"], None, "the system's"),
        (["/sys"], None, "the system's"),
        (["/dev/shm"], None, "the system's"),
        (["/.sandboxkit/data"], None, "the system's"),
        (["/tmp"], None, "would hide '/tmp', which is writable"),
        (["/workspace"], None, "would hide '/workspace', which is writable"),
        (["/home/me"], "/home/me", "would hide '/home/me', which is writable"),
        (["/home"], "/home/me", "would hide '/home/me', which is writable"),
        (["/data", "/data/more"], None, "'/data/more': it lies in '/data'"),
        (["/data/more", "/data"], None, "'/data/more': it lies in '/data'"),
    ],
)
def test_a_mount_that_would_hide_something_is_refused(
    dataset: Dataset, points: list[str], workdir: str | None, why: str
) -> None:
    options: dict[str, Any] = {"mounts": dict.fromkeys(points, dataset), "workdir": workdir}
    with pytest.raises(ConfigurationError, match=f"mounts.*{why}"):
        _spec.build(SandboxSpec(), options)


def test_a_working_directory_of_a_later_call_is_checked_against_the_sessions_mounts(
    dataset: Dataset,
) -> None:
    with (
        Session("local", mounts={"/data": dataset}) as session,
        pytest.raises(ConfigurationError, match=r"mounts at '/data'.*use a folder such as"),
    ):
        session.sandbox(workdir="/data/work")


@pytest.mark.parametrize("point", ["/data", "/data2", "/workspace/data", "/tmp/data", "/mnt/a/b"])
def test_other_folders_are_mount_points(dataset: Dataset, point: str) -> None:
    spec = _spec.build(SandboxSpec(), {"mounts": {point: dataset, "/datas": dataset}})
    assert spec.mounts == {point: dataset.digest, "/datas": dataset.digest}


@pytest.mark.parametrize("value", ["folder", None, ["/data"], {"/data": "folder"}, {"/data": None}])
def test_other_values_are_refused(value: object) -> None:
    with pytest.raises(ConfigurationError, match=r"mounts.*Dataset\('folder'\)"):
        _spec.build(SandboxSpec(), {"mounts": value})


@pytest.mark.parametrize("point", ["/usr/share/data", "/usr", "/bin/data", "/etc/data", "/lib"])
def test_local_refuses_mounts_in_folders_of_this_machine_unless_it_has_an_image(
    dataset: Dataset, point: str
) -> None:
    spec = _spec.build(SandboxSpec(), {"mounts": {"/data": dataset, point: dataset}})
    with pytest.raises(ConfigurationError, match=f"mounts='{point}': .*such as '/data'"):
        local.check(spec)
    local.check(_spec.build(spec, {"image": "/srv/image"}))


@pytest.mark.parametrize("make", [FakeProvider, LocalProvider])
def test_no_mounts_are_always_accepted(make: Callable[[], Any]) -> None:
    make().check(SandboxSpec(mounts={}))

"""The option `mounts`: which folders, datasets and volumes it takes, everywhere that options are given."""

import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sandboxkit import ConfigurationError, Dataset, SandboxSpec, Session, Volume, _spec
from sandboxkit.errors import DatasetNotFoundError
from sandboxkit.provider import split_mounts
from sandboxkit.providers.local import LocalProvider
from sandboxkit.providers.local import _spec as local
from sandboxkit.testing import FakeProvider

REFUSED = tomllib.loads((Path(__file__).parent / "mounts.toml").read_text())["refused"]
DIGEST = f"sha256:{'0' * 64}"


@pytest.fixture
def dataset(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Dataset:
    monkeypatch.setenv("SANDBOXKIT_STATE_DIR", str(tmp_path / "state"))
    (tmp_path / "source").mkdir()
    return Dataset(tmp_path / "source")


def build(mounts: Any, **options: Any) -> SandboxSpec:
    return _spec.build(SandboxSpec(), {"mounts": mounts, **options})


@pytest.mark.parametrize("case", REFUSED, ids=lambda case: " ".join(case["points"]))
def test_a_mount_that_would_hide_one_is_refused(dataset: Dataset, case: dict[str, Any]) -> None:
    mounts = dict.fromkeys(case["points"], dataset)
    with pytest.raises(ConfigurationError, match=case["says"]):
        build(mounts, workdir=case.get("workdir"))


def test_a_later_working_directory_is_checked_against_mounts(dataset: Dataset) -> None:
    with (
        Session("local", mounts={"/data": dataset}) as session,
        pytest.raises(ConfigurationError, match=r"mounts at '/data'.*use a folder such as"),
    ):
        session.sandbox(workdir="/data/work")


@pytest.mark.parametrize("point", ["/data", "/data2", "/workspace/data", "/tmp/data", "/mnt/a/b"])
def test_other_folders_are_mount_points(dataset: Dataset, point: str) -> None:
    spec = build({point: dataset, "/datas": dataset})
    assert spec.mounts == {point: dataset.digest, "/datas": dataset.digest}


def test_other_values_are_refused() -> None:
    for value in ("folder", None, ["/data"], {"/data": "folder"}, {"/data": None}):
        with pytest.raises(ConfigurationError, match=r"mounts.*Dataset\('folder'\)"):
            build(value)
    for text in ("volume:", "volume:A", "volume:a/../b", "pip", 1, None):
        with pytest.raises(ConfigurationError, match=r"mounts\['/cache'\].*Volume\('name'\)"):
            build({"/cache": text})


@pytest.mark.parametrize("point", ["/usr/share/data", "/usr", "/bin/data", "/etc/data", "/lib"])
def test_local_without_image_refuses_this_machines_folders(dataset: Dataset, point: str) -> None:
    spec = build({"/data": dataset, point: dataset})
    with pytest.raises(ConfigurationError, match=f"mounts='{point}': .*such as '/data'"):
        local.check(spec)
    local.check(_spec.build(spec, {"image": "/srv/image"}))


@pytest.mark.parametrize("make", [FakeProvider, LocalProvider])
def test_no_mounts_are_always_accepted(make: Callable[[], Any]) -> None:
    make().check(SandboxSpec(mounts={}))


def test_an_invalid_digest_is_refused_at_once_an_unknown_at_the_start(dataset: Dataset) -> None:
    with Session("local") as session:
        with pytest.raises(ConfigurationError, match="mounts"):
            session.sandbox(mounts={"/data": dataset.digest[:-1]})
        sandbox = session.sandbox(mounts={"/data": DIGEST})
        with pytest.raises(DatasetNotFoundError, match="is stored in"):
            sandbox.start().result(30)


def test_a_volume_has_a_name_of_few_characters() -> None:
    for name in ("a", "pip-cache", "0", "a" * 32):
        assert Volume(name).source == f"volume:{name}"
    bad: list[Any] = ["", "-a", "a-", "A", "a_b", "a/b", "..", "a" * 33, "a\n", None, b"a"]
    for name in bad:
        with pytest.raises(ConfigurationError, match=r"Volume\(name=.*such as 'pip-cache'"):
            Volume(name)


@pytest.mark.parametrize("value", [Volume("pip"), "volume:pip"])
def test_a_volume_may_be_given_as_text(value: Any) -> None:
    spec = build({"/cache": value, "/data": DIGEST})
    assert split_mounts(spec.mounts) == ({"/data": DIGEST}, {"/cache": "pip"})


def test_a_volume_is_refused_where_it_cannot_be() -> None:
    with pytest.raises(ConfigurationError, match="mounts at '/tmp'"):
        build({"/tmp": Volume("pip")})
    with pytest.raises(ConfigurationError, match=r"reuse='reset'.*mounts=/cache.*next job"):
        build({"/cache": Volume("pip")}, profile="strict", reuse="reset")
    with pytest.raises(ConfigurationError, match=r"mounts=.*volume:pip"):
        Session(FakeProvider(), mounts={"/cache": Volume("pip")})


def test_a_pools_sandboxes_share_a_volume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SANDBOXKIT_STATE_DIR", str(tmp_path / "state"))
    with Session("local", mounts={"/cache": Volume("pip")}, pool=2) as session:
        for expected in ("1\n", "2\n", "3\n"):
            script = "echo line >> /cache/file; wc -l < /cache/file"
            assert session.run(["sh", "-c", script]).result(60).stdout == expected

"""Volume: which names it takes, and which options go with it."""

from pathlib import Path
from typing import Any

import pytest

from sandboxkit import ConfigurationError, SandboxSpec, Session, Volume, _spec
from sandboxkit.provider import split_mounts
from sandboxkit.testing import FakeProvider

DIGEST = f"sha256:{'0' * 64}"


@pytest.mark.parametrize("name", ["a", "pip-cache", "0", "a" * 32])
def test_a_name_is_taken(name: str) -> None:
    assert Volume(name).source == f"volume:{name}"


@pytest.mark.parametrize(
    "name", ["", "-a", "a-", "A", "a_b", "a/b", "..", "a" * 33, "a\n", None, b"a"]
)
def test_another_name_is_refused(name: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"Volume\(name=.*such as 'pip-cache'"):
        Volume(name)


@pytest.mark.parametrize("value", [Volume("pip"), "volume:pip"])
def test_a_volume_may_be_given_as_text(value: Any) -> None:
    spec = _spec.build(SandboxSpec(), {"mounts": {"/cache": value, "/data": DIGEST}})
    assert split_mounts(spec.mounts) == ({"/data": DIGEST}, {"/cache": "pip"})


@pytest.mark.parametrize("value", ["volume:", "volume:A", "volume:a/../b", "pip", 1, None])
def test_other_text_is_refused(value: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"mounts\['/cache'\].*Volume\('name'\)"):
        _spec.build(SandboxSpec(), {"mounts": {"/cache": value}})


def test_a_volume_is_refused_where_it_would_hide_something() -> None:
    with pytest.raises(ConfigurationError, match="mounts at '/tmp'"):
        _spec.build(SandboxSpec(), {"mounts": {"/tmp": Volume("pip")}})


def test_a_sandbox_that_is_reset_has_no_volume() -> None:
    options = {"mounts": {"/cache": Volume("pip")}, "profile": "strict", "reuse": "reset"}
    with pytest.raises(ConfigurationError, match=r"reuse='reset'.*mounts=/cache.*next job"):
        _spec.build(SandboxSpec(), options)


def test_a_provider_without_volumes_refuses_before_the_start() -> None:
    with pytest.raises(ConfigurationError, match=r"mounts=.*volume:pip"):
        Session(FakeProvider(), mounts={"/cache": Volume("pip")})


def test_a_pools_sandboxes_share_a_volume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SANDBOXKIT_STATE_DIR", str(tmp_path / "state"))
    with Session("local", mounts={"/cache": Volume("pip")}, pool=2) as session:
        for expected in ("1\n", "2\n", "3\n"):
            script = "echo line >> /cache/file; wc -l < /cache/file"
            assert session.run(["sh", "-c", script]).result(60).stdout == expected

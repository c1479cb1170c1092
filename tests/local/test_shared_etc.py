"""The files below /etc that packages bring for their programs are there, without secrets."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandboxkit import Session
from sandboxkit.providers.local import _layout
from tests.components import needs_root

pytestmark = needs_root("only root can put files into /etc")
FOLDER = Path(f"/etc/sandboxkit-test-{os.getpid()}")


@pytest.fixture
def folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder like those of packages, of which only this process knows: what starts beside it would miss it later."""
    monkeypatch.setattr(_layout, "_SHARED_ETC", (*_layout._SHARED_ETC, FOLDER.name))
    FOLDER.mkdir()
    (FOLDER / "security.conf").write_text("settings")
    (FOLDER / "management.password").write_text("a secret")
    (FOLDER / "management.password").chmod(0o600)
    _layout.system.cache_clear()
    try:
        yield FOLDER
    finally:
        shutil.rmtree(FOLDER)
        _layout.system.cache_clear()


@pytest.mark.parametrize("profile", ["standard", "strict"])
def test_etc_has_the_files_of_packages_without_secrets(folder: Path, profile: str) -> None:
    with Session("local", profile="strict" if profile == "strict" else "standard") as session:
        box = session.sandbox()
        assert box.exec(["cat", f"{folder}/security.conf"]).result(60).stdout == "settings"
        for command in (["cat", f"{folder}/management.password"], ["touch", f"{folder}/new"]):
            assert box.exec(command).result(60).returncode != 0


def test_etc_has_no_information_about_the_host() -> None:
    with Session("local") as session:
        listed = session.run(["ls", "/etc", "/etc/ssl"]).result(60).stdout.split()
    assert not {"shadow", "hostname", "machine-id", "ssh", "private", "sudoers"} & set(listed)

"""Conformance tests for datasets: the content of a mount, and that no program can change it."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

from sandboxkit import ConfigurationError, Dataset, Operation, Sandbox, Session
from sandboxkit.provider import Provider
from sandboxkit.testing.conformance._base import DEADLINE, Conformance, token
from sandboxkit.testing.conformance._pytest import pytest
from sandboxkit.types import Profile, SandboxSpec

__all__ = ["MountsConformance"]

_SHOWN = """
import os
for name in sorted(os.listdir("/data")):
    path = f"/data/{name}"
    mode = os.lstat(path).st_mode & 0o7777
    print(name, oct(mode), os.readlink(path) if os.path.islink(path) else "")
print(open("/data/link").read(), os.popen("/data/run").read(), len(open("/data/large", "rb").read()))
print(*{line.split()[5] for line in open("/proc/self/mountinfo") if line.split()[4] == "/data"})
"""
_ATTACKS = """
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
def call(done):
    if done < 0:
        raise OSError(ctypes.get_errno(), "")
REMOUNT, BIND, MOVE = 32, 4096, 8192
attacks = {
    "write": lambda: open("/data/file", "w"),
    "append": lambda: open("/data/file", "a"),
    "create": lambda: open("/data/new", "w"),
    "mkdir": lambda: os.mkdir("/data/new"),
    "unlink": lambda: os.unlink("/data/file"),
    "rename": lambda: os.rename("/data/file", "/data/other"),
    "chmod": lambda: os.chmod("/data/file", 0o777),
    "chown": lambda: os.chown("/data/file", os.getuid(), os.getgid()),
    "times": lambda: os.utime("/data/file"),
    "link": lambda: os.link("/data/file", "/data/hard"),
    "link out": lambda: os.link("/data/file", "/tmp/hard"),
    "xattr": lambda: os.setxattr("/data/file", "user.a", b"1"),
    "mount moved": lambda: os.rename("/data", "/tmp/data"),
    "mount removed": lambda: os.rmdir("/data"),
    "by descriptor": lambda: os.open(f"/proc/self/fd/{os.open('/data/file', os.O_RDONLY)}", os.O_WRONLY),
    "remount": lambda: call(libc.mount(None, b"/data", None, REMOUNT | BIND, None)),
    "remount file system": lambda: call(libc.mount(None, b"/data", None, REMOUNT, None)),
    "bind": lambda: call(libc.mount(b"/data", b"/tmp", None, BIND, None)),
    "move": lambda: call(libc.mount(b"/data", b"/tmp", None, MOVE, None)),
    "unmount": lambda: call(libc.umount2(b"/data", 2)),
}
for name, attack in attacks.items():
    try:
        attack()
    except OSError:
        continue
    print(name)
"""


def example_dataset(folder: Path) -> Dataset:
    """Make a folder with every kind of entry that a dataset can have; return it as a Dataset."""
    (folder / "empty").mkdir(parents=True)
    (folder / "file").write_text("content")
    (folder / "file").chmod(0o600)
    (folder / "link").symlink_to("file")
    (folder / "run").write_text("#!/bin/sh\necho it runs")
    (folder / "run").chmod(0o4755)
    (folder / "large").write_bytes(os.urandom(3 << 20))
    return Dataset(folder)


class MountsConformance(Conformance):
    """The option `mounts`: honoured, or refused before anything is made."""

    @pytest.fixture
    def dataset(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Dataset:
        """A dataset in a store that only this test uses."""
        monkeypatch.setenv("SANDBOXKIT_STATE_DIR", str(tmp_path / "state"))
        return example_dataset(tmp_path / "dataset")

    @pytest.fixture
    def mounting(self, dataset: Dataset) -> Iterator[Provider]:
        """A provider that mounts datasets; its copies are removed after the test."""
        provider = self.make_provider()
        try:
            try:
                provider.check(SandboxSpec(mounts={"/data": dataset.digest}))
            except ConfigurationError as error:
                pytest.skip(str(error))
            yield provider
            Operation(provider.remove_unused_datasets()).result(DEADLINE)
        finally:
            Operation(provider.aclose()).result(DEADLINE)

    @pytest.fixture(params=get_args(Profile))
    def mounted(
        self, request: pytest.FixtureRequest, mounting: Provider, dataset: Dataset
    ) -> Iterator[Sandbox]:
        """A started sandbox of each profile, with the dataset at /data and below the working directory."""
        with Session(
            mounting,
            image=self.image,
            tags={"conformance": token()},
            profile=request.param,
            mounts={"/data": dataset, "/workspace/given": dataset},
        ) as session:
            yield session.sandbox().start().result(DEADLINE)

    def test_mounts_are_honoured_or_refused_before_anything_is_made(
        self, provider: Provider, dataset: Dataset
    ) -> None:
        refusals: list[str] = []
        try:
            with Session(provider, image=self.image, mounts={"/data": dataset}) as session:
                session.sandbox()
        except ConfigurationError as error:
            refusals.append(str(error))
        assert all("mounts=" in refusal and "/data" in refusal for refusal in refusals)

    def test_a_mount_shows_the_dataset(self, mounted: Sandbox) -> None:
        result = mounted.exec(["python3", "-c", _SHOWN]).result(DEADLINE)
        *lines, options = result.stdout.splitlines()
        assert lines == [
            "empty 0o755 ",
            "file 0o644 ",
            "large 0o644 ",
            "link 0o777 file",
            "run 0o755 ",
            "content it runs",
            f" {3 << 20}",
        ], result.stderr
        assert options.split(",")[0] == "ro", options

    def test_a_dataset_may_be_mounted_twice(self, mounted: Sandbox) -> None:
        result = mounted.exec(["cat", "/data/file", "given/file"]).result(DEADLINE)
        assert result.stdout == "contentcontent", result.stderr

    def test_the_working_directory_around_a_mount_is_writable(self, mounted: Sandbox) -> None:
        mounted.write_file("/workspace/own", b"written").result(DEADLINE)
        result = mounted.exec(["sh", "-c", "cat own && echo more > other"]).result(DEADLINE)
        assert (result.returncode, result.stdout) == (0, "written"), result.stderr

    def test_no_program_changes_or_moves_a_mount(self, mounted: Sandbox) -> None:
        result = mounted.exec(["python3", "-c", _ATTACKS]).result(DEADLINE)
        assert (result.returncode, result.stdout) == (0, ""), result.stderr
        assert mounted.read_file("/data/file").result(DEADLINE) == b"content"

    def test_what_a_program_writes_to_a_mount_is_in_no_other_sandbox(
        self, mounting: Provider, dataset: Dataset
    ) -> None:
        script = (
            "echo more >> /data/file; echo > /data/new; rm /data/run; mv /data/link /data/moved"
        )
        with Session(mounting, image=self.image, mounts={"/data": dataset}) as session:
            session.run(["sh", "-c", script]).result(DEADLINE)
            seen = session.run(["sh", "-c", "cat /data/file; ls /data"]).result(DEADLINE).stdout
        assert seen.split() == ["contentempty", "file", "large", "link", "run"]

    def test_a_mount_shows_nothing_else_of_the_store(
        self, mounted: Sandbox, dataset: Dataset
    ) -> None:
        store = os.environ["SANDBOXKIT_STATE_DIR"]
        seen = (
            mounted.exec(["sh", "-c", f"ls -a /data/..; ls -aR {store} 2>&1"])
            .result(DEADLINE)
            .stdout
        )
        assert dataset.digest[7:] not in seen
        assert "lock" not in seen.split()

    def test_sandboxes_mount_what_each_asked_for(
        self, mounting: Provider, dataset: Dataset, tmp_path: Path
    ) -> None:
        (tmp_path / "other").mkdir()
        (tmp_path / "other" / "file").write_text("before")
        other = Dataset(tmp_path / "other")
        (tmp_path / "other" / "file").write_text("after")
        with Session(mounting, image=self.image, mounts={"/data": other}, pool=2) as session:
            read = session.run(["cat", "/data/file"]).result(DEADLINE)
            again = session.run(["cat", "/data/file"], mounts={"/data": dataset})
            assert (read.stdout, again.result(DEADLINE).stdout) == ("before", "content")
            none = session.run(["ls", "/data"], mounts={}).result(DEADLINE)
            assert none.returncode != 0

    def test_copies_that_no_sandbox_uses_are_removed(
        self, mounting: Provider, dataset: Dataset
    ) -> None:
        def unused() -> list[str]:
            return Operation(mounting.remove_unused_datasets(dry_run=True)).result(DEADLINE)

        with Session(mounting, image=self.image, mounts={"/data": dataset}) as session:
            sandbox = session.sandbox().start().result(DEADLINE)
            assert dataset.digest not in unused()
            Operation(mounting.remove_unused_datasets()).result(DEADLINE)
            assert sandbox.read_file("/data/file").result(DEADLINE) == b"content"
            sandbox.stop().result(DEADLINE)
            Operation(mounting.remove_unused_datasets()).result(DEADLINE)
            assert dataset.digest not in unused()
            read = session.run(["cat", "/data/file"]).result(DEADLINE)
            assert read.stdout == "content"

"""Tests of file and folder operations and transfers."""

import os
from pathlib import Path

from sandboxkit import (
    ConfigurationError,
    FileType,
    Sandbox,
    SandboxFileError,
    SandboxFileNotFoundError,
    Session,
)
from sandboxkit.testing.conformance._base import DEADLINE, Conformance
from sandboxkit.testing.conformance._pytest import pytest


class FilesConformance(Conformance):
    """Read, write, upload, download, list, stat, remove."""

    def test_what_is_written_is_read(self, shared: Sandbox, folder: str) -> None:
        shared.write_file(f"{folder}/file", "text").result(DEADLINE)
        assert shared.read_file(f"{folder}/file").result(DEADLINE) == b"text"

    def test_binary_content_is_exact(self, shared: Sandbox, folder: str) -> None:
        data = bytes(range(256)) * 100
        shared.write_file(f"{folder}/file", data).result(DEADLINE)
        assert shared.read_file(f"{folder}/file").result(DEADLINE) == data

    def test_an_empty_file_is_a_file(self, shared: Sandbox, folder: str) -> None:
        shared.write_file(f"{folder}/file", b"").result(DEADLINE)
        assert shared.read_file(f"{folder}/file").result(DEADLINE) == b""

    def test_20_mb_make_the_round_trip(self, shared: Sandbox, folder: str) -> None:
        data = os.urandom(20 << 20)
        shared.write_file(f"{folder}/file", data).result(60)
        assert shared.read_file(f"{folder}/file").result(60) == data

    def test_commands_see_written_files(self, shared: Sandbox, folder: str) -> None:
        shared.write_file(f"{folder}/file", "seen").result(DEADLINE)
        assert shared.exec(["cat", f"{folder}/file"]).result(DEADLINE).stdout == "seen"

    def test_commands_may_change_written_files(self, shared: Sandbox, folder: str) -> None:
        shared.write_file(f"{folder}/file", "1").result(DEADLINE)
        shared.exec(["sh", "-c", "echo 2 >> file"], cwd=folder, check=True).result(DEADLINE)
        assert shared.read_file(f"{folder}/file").result(DEADLINE) == b"12\n"

    def test_files_and_commands_have_the_same_user(self, shared: Sandbox, folder: str) -> None:
        shared.write_file(f"{folder}/ours", "1").result(DEADLINE)
        script = "[ -O ours ] && [ -w ours ] && (umask 077; echo 2 > private)"
        assert shared.exec(["sh", "-c", script], cwd=folder).result(DEADLINE).returncode == 0
        assert shared.read_file(f"{folder}/private").result(DEADLINE) == b"2\n"

    def test_writing_makes_parent_folders(self, shared: Sandbox, folder: str) -> None:
        shared.write_file(f"{folder}/a/b/c", "deep").result(DEADLINE)
        assert shared.read_file(f"{folder}/a/b/c").result(DEADLINE) == b"deep"

    def test_odd_names(self, shared: Sandbox, folder: str) -> None:
        for name in ("grüße 🎉", "a b", "-rf", "$HOME", "new\nline", "*", "'\""):
            path = f"{folder}/{name}"
            shared.write_file(path, name).result(DEADLINE)
            assert shared.read_file(path).result(DEADLINE) == name.encode()
            assert [info.path for info in shared.list_dir(folder).result(DEADLINE)] == [path]
            shared.remove(path).result(DEADLINE)
            assert shared.list_dir(folder).result(DEADLINE) == []

    def test_a_mode_is_honoured(self, shared: Sandbox, folder: str) -> None:
        shared.write_file(f"{folder}/run", "#!/bin/sh\necho ran\n", mode=0o755).result(DEADLINE)
        assert shared.exec([f"{folder}/run"]).result(DEADLINE).stdout == "ran\n"
        assert shared.stat(f"{folder}/run").result(DEADLINE).mode == 0o755

    def test_a_new_file_is_0644(self, shared: Sandbox, folder: str) -> None:
        shared.write_file(f"{folder}/file", "").result(DEADLINE)
        assert shared.stat(f"{folder}/file").result(DEADLINE).mode == 0o644

    def test_overwriting_keeps_the_mode(self, shared: Sandbox, folder: str) -> None:
        shared.write_file(f"{folder}/file", "old", mode=0o700).result(DEADLINE)
        shared.write_file(f"{folder}/file", "new").result(DEADLINE)
        assert shared.read_file(f"{folder}/file").result(DEADLINE) == b"new"
        assert shared.stat(f"{folder}/file").result(DEADLINE).mode == 0o700

    def test_overwriting_is_atomic(self, shared: Sandbox, folder: str) -> None:
        shared.write_file(f"{folder}/file", "old").result(DEADLINE)
        script = "exec 3< file; echo ready; read go; cat <&3"
        reader = shared.exec(["sh", "-c", script], cwd=folder, stdin=True)
        assert next(iter(reader.stdout.lines())) == "ready"
        shared.write_file(f"{folder}/file", "new and longer").result(DEADLINE)
        reader.stdin.write("go\n").result(DEADLINE)
        assert reader.result(DEADLINE).stdout == "ready\nold"
        assert len(shared.list_dir(folder).result(DEADLINE)) == 1  # no temporary file is left

    def test_files_of_the_spec_are_there_first(self, session: Session) -> None:
        sandbox = session.sandbox(files={"/workspace/in/put": "given"})
        result = sandbox.exec(["cat", "/workspace/in/put"]).result(DEADLINE)
        assert result.stdout == "given"

    def test_reading_a_missing_file(self, shared: Sandbox) -> None:
        with pytest.raises(FileNotFoundError) as caught:
            shared.read_file("/workspace/no/such").result(DEADLINE)
        assert isinstance(caught.value, SandboxFileNotFoundError)
        assert caught.value.path == "/workspace/no/such"

    def test_reading_a_folder(self, shared: Sandbox, folder: str) -> None:
        with pytest.raises(SandboxFileError):
            shared.read_file(folder).result(DEADLINE)

    def test_reading_a_device_is_refused(self, shared: Sandbox) -> None:
        with pytest.raises(SandboxFileError):
            shared.read_file("/dev/zero").result(DEADLINE)

    def test_reading_past_max_bytes_is_refused(self, shared: Sandbox, folder: str) -> None:
        shared.write_file(f"{folder}/file", b"x" * 1000).result(DEADLINE)
        with pytest.raises(SandboxFileError):
            shared.read_file(f"{folder}/file", max_bytes=999).result(DEADLINE)
        assert len(shared.read_file(f"{folder}/file", max_bytes=1000).result(DEADLINE)) == 1000

    def test_writing_over_a_folder(self, shared: Sandbox, folder: str) -> None:
        with pytest.raises(SandboxFileError):
            shared.write_file(folder, "no").result(DEADLINE)

    def test_writing_where_nothing_can_be_written(self, shared: Sandbox) -> None:
        with pytest.raises(SandboxFileError):
            shared.write_file("/proc/conformance/file", "no").result(DEADLINE)

    def test_a_path_that_is_not_plain_is_refused(self, shared: Sandbox) -> None:
        for path in ("../a", "/a/../b", ""):
            with pytest.raises(ConfigurationError):
                shared.read_file(path)

    def test_reading_follows_links(self, shared: Sandbox, folder: str) -> None:
        shared.write_file(f"{folder}/file", "target").result(DEADLINE)
        shared.exec(["ln", "-s", "file", "link"], cwd=folder, check=True).result(DEADLINE)
        assert shared.read_file(f"{folder}/link").result(DEADLINE) == b"target"

    def test_stat_tells_type_size_and_mode(self, shared: Sandbox, folder: str) -> None:
        shared.write_file(f"{folder}/file", b"12345", mode=0o640).result(DEADLINE)
        info = shared.stat(f"{folder}/file").result(DEADLINE)
        assert (info.path, info.type) == (f"{folder}/file", FileType.FILE)
        assert (info.size, info.mode) == (5, 0o640)
        assert shared.stat(folder).result(DEADLINE).type is FileType.DIRECTORY

    def test_stat_does_not_follow_links(self, shared: Sandbox, folder: str) -> None:
        shared.exec(["ln", "-s", "nowhere", "link"], cwd=folder, check=True).result(DEADLINE)
        assert shared.stat(f"{folder}/link").result(DEADLINE).type is FileType.SYMLINK

    def test_stat_of_a_missing_path(self, shared: Sandbox) -> None:
        with pytest.raises(FileNotFoundError):
            shared.stat("/workspace/no/such").result(DEADLINE)

    def test_list_dir_is_sorted_and_absolute(self, shared: Sandbox, folder: str) -> None:
        for name in ("c", "a", ".hidden"):
            shared.write_file(f"{folder}/{name}", name).result(DEADLINE)
        shared.exec(["mkdir", f"{folder}/b"], check=True).result(DEADLINE)
        found = {i.path: i.type for i in shared.list_dir(folder).result(DEADLINE)}
        assert list(found) == [f"{folder}/{name}" for name in (".hidden", "a", "b", "c")]
        assert found[f"{folder}/b"] is FileType.DIRECTORY

    def test_list_dir_of_a_missing_folder(self, shared: Sandbox) -> None:
        with pytest.raises(FileNotFoundError):
            shared.list_dir("/workspace/no/such").result(DEADLINE)

    def test_list_dir_of_a_file(self, shared: Sandbox, folder: str) -> None:
        shared.write_file(f"{folder}/file", "").result(DEADLINE)
        with pytest.raises(SandboxFileError):
            shared.list_dir(f"{folder}/file").result(DEADLINE)

    def test_remove_needs_recursive_for_a_tree(self, shared: Sandbox, folder: str) -> None:
        shared.write_file(f"{folder}/tree/leaf", "").result(DEADLINE)
        with pytest.raises(SandboxFileError):
            shared.remove(f"{folder}/tree").result(DEADLINE)
        shared.remove(f"{folder}/tree", recursive=True).result(DEADLINE)
        with pytest.raises(FileNotFoundError):
            shared.stat(f"{folder}/tree").result(DEADLINE)

    def test_remove_does_not_follow_links(self, shared: Sandbox, folder: str) -> None:
        shared.write_file(f"{folder}/kept/file", "").result(DEADLINE)
        shared.exec(["ln", "-s", "kept", "link"], cwd=folder, check=True).result(DEADLINE)
        shared.remove(f"{folder}/link", recursive=True).result(DEADLINE)
        assert shared.read_file(f"{folder}/kept/file").result(DEADLINE) == b""

    def test_relative_paths_lie_below_the_workdir(self, shared: Sandbox) -> None:
        workdir = shared.workdir().result(DEADLINE)
        shared.write_file("relative/file", "text").result(DEADLINE)
        assert shared.read_text(f"{workdir}/relative/file").result(DEADLINE) == "text"
        (found,) = shared.list_dir("relative").result(DEADLINE)
        assert (found.path, found.name) == (f"{workdir}/relative/file", "file")
        shared.remove("relative", recursive=True).result(DEADLINE)
        assert not shared.exists("relative").result(DEADLINE)

    def test_folders_are_made_and_files_renamed(self, shared: Sandbox, folder: str) -> None:
        shared.mkdir(f"{folder}/a/b").result(DEADLINE)
        shared.mkdir(f"{folder}/a").result(DEADLINE)
        shared.write_file(f"{folder}/old", "text").result(DEADLINE)
        shared.rename(f"{folder}/old", f"{folder}/a/b/new").result(DEADLINE)
        assert shared.exists(f"{folder}/a/b/new").result(DEADLINE)
        with pytest.raises(SandboxFileNotFoundError):
            shared.rename(f"{folder}/old", f"{folder}/x").result(DEADLINE)
        with pytest.raises(SandboxFileError, match="is a folder"):
            shared.rename(f"{folder}/a/b/new", f"{folder}/a").result(DEADLINE)

    def test_calls_on_a_path_keep_their_order(self, shared: Sandbox, folder: str) -> None:
        for number in range(20):
            shared.write_file(f"{folder}/file", f"echo {number}")
        read = shared.read_text(f"{folder}/file")
        removed = shared.remove(folder, recursive=True)
        shared.write_file(f"{folder}/file", "echo last")
        assert shared.exec(["sh", f"{folder}/file"]).result(DEADLINE).stdout == "last\n"
        assert (read.result(DEADLINE), removed.result(DEADLINE)) == ("echo 19", None)

    def test_remove_a_missing_path(self, shared: Sandbox) -> None:
        with pytest.raises(FileNotFoundError):
            shared.remove("/workspace/no/such").result(DEADLINE)

    def test_one_file_goes_up_and_comes_down(
        self, shared: Sandbox, folder: str, tmp_path: Path
    ) -> None:
        (tmp_path / "up").write_bytes(b"\x00\xff" * 5000)
        shared.upload(tmp_path / "up", f"{folder}/there").result(DEADLINE)
        transfer = shared.download(f"{folder}/there", tmp_path / "down").result(DEADLINE)
        assert (tmp_path / "down").read_bytes() == b"\x00\xff" * 5000
        assert (transfer.files, transfer.bytes) == (1, 10_000)

    def test_1000_files_go_up_with_modes_and_links(
        self, shared: Sandbox, folder: str, tmp_path: Path
    ) -> None:
        _thousand(tmp_path)
        shared.upload(tmp_path, f"{folder}/there").result(60)
        script = "find . -type f | wc -l; find . -type f -perm 755 | wc -l; readlink link; cat link"
        result = shared.exec(["sh", "-c", script], cwd=f"{folder}/there").result(DEADLINE)
        assert result.stdout.split() == ["1000", "500", "d3/f7", "3-7"]

    def test_1000_files_come_down_without_links(
        self, shared: Sandbox, folder: str, tmp_path: Path
    ) -> None:
        _thousand(tmp_path / "up")
        shared.upload(tmp_path / "up", folder).result(60)
        transfer = shared.download(folder, tmp_path / "down").result(60)
        assert transfer.files == 1000
        assert [name.removeprefix("./") for name in transfer.skipped] == ["link"]
        assert not (tmp_path / "down/link").exists()
        assert (tmp_path / "down/d3/f7").read_text() == "3-7"
        assert os.access(tmp_path / "down/d3/f7", os.X_OK)
        assert not (tmp_path / "down/d3/f8").stat().st_mode & 0o111

    def test_downloading_a_missing_path(self, shared: Sandbox, folder: str, tmp_path: Path) -> None:
        with pytest.raises(FileNotFoundError):
            shared.download(f"{folder}/no", tmp_path / "down").result(DEADLINE)

    def test_a_download_past_its_limit_is_refused(
        self, shared: Sandbox, folder: str, tmp_path: Path
    ) -> None:
        shared.write_file(f"{folder}/file", b"x" * 5000).result(DEADLINE)
        with pytest.raises(SandboxFileError):
            shared.download(folder, tmp_path / "down", max_bytes=4999).result(DEADLINE)

    def test_an_upload_lands_on_top(self, shared: Sandbox, folder: str, tmp_path: Path) -> None:
        shared.write_file(f"{folder}/old", "old").result(DEADLINE)
        (tmp_path / "new").write_text("new")
        shared.upload(tmp_path, folder).result(DEADLINE)
        assert len(shared.list_dir(folder).result(DEADLINE)) == 2


def _thousand(root: Path) -> None:
    for outer in range(10):
        (root / f"d{outer}").mkdir(parents=True)
        for inner in range(100):
            path = root / f"d{outer}/f{inner}"
            path.write_text(f"{outer}-{inner}")
            path.chmod(0o755 if inner % 2 else 0o644)
    (root / "link").symlink_to("d3/f7")

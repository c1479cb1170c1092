"""Tests that failed transfers raise typed errors and leave nothing behind on either side."""

import asyncio
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from sandboxkit import Sandbox, SandboxFileError, SandboxFileNotFoundError, Session
from sandboxkit._life import _loop
from sandboxkit.testing.conformance._base import DEADLINE, Conformance, limited, token, until
from sandboxkit.testing.conformance._pytest import pytest

_MIB = 1 << 20
_LARGE = 30 * _MIB
"""A size (bytes) larger than all buffers between this machine and the sandbox."""
_FAILURES = 40
"""The number of worker threads: if each failure leaked one, the next call would hang."""
_SPARE_THREADS = 8
"""Idle worker threads that may be kept for reuse."""
_SETTLED = 5.0
"""Seconds within which a call's tasks, descriptors and threads must be gone."""
_NOT_WRITABLE = "/proc/conformance"


@contextmanager
def nothing_left() -> Iterator[None]:
    """Fail if the body leaves threads, descriptors or tasks behind in this process."""
    descriptors, tasks, threads = _descriptors(), _tasks(), threading.active_count()
    yield
    until(lambda: _tasks() <= tasks, "the calls' tasks are over", _SETTLED)
    until(lambda: _descriptors() <= descriptors, "their descriptors are closed", _SETTLED)
    most = threads + _SPARE_THREADS
    until(lambda: threading.active_count() <= most, "their threads are free", _SETTLED)


class TransfersConformance(Conformance):
    """Failing calls of upload, download, write_file and read_file."""

    @pytest.fixture
    def large(self, tmp_path: Path) -> Path:
        """A large file on this machine, alone in its folder."""
        path = tmp_path / "large" / "file"
        path.parent.mkdir()
        with path.open("wb") as file:
            file.truncate(_LARGE)
        return path

    def test_uploads_that_fail_are_typed_and_leave_nothing(
        self, shared: Sandbox, folder: str, large: Path
    ) -> None:
        shared.write_file(f"{folder}/plain", "a file").result(DEADLINE)
        shared.upload(large.parent, f"{folder}/warm").result(DEADLINE)
        shared.remove(f"{folder}/warm", recursive=True).result(DEADLINE)
        targets = [f"{_NOT_WRITABLE}/file", f"{folder}/plain/below"]
        with nothing_left():
            for number in range(_FAILURES):
                source = large if number % 4 < 2 else large.parent
                with pytest.raises(SandboxFileError) as caught:
                    shared.upload(source, targets[number % 2]).result(DEADLINE)
                assert str(caught.value.path) in targets[number % 2]
        self._works(shared, folder)

    def test_many_uploads_that_fail_at_once(
        self, shared: Sandbox, folder: str, large: Path
    ) -> None:
        uploads = [shared.upload(large, f"{_NOT_WRITABLE}/file") for _ in range(8)]
        for upload in uploads:
            assert isinstance(upload.exception(DEADLINE), SandboxFileError)
        self._works(shared, folder)

    def test_downloads_and_reads_that_fail_leave_nothing(
        self, shared: Sandbox, folder: str, tmp_path: Path
    ) -> None:
        shared.write_file(f"{folder}/file", b"x" * 2 * _MIB).result(DEADLINE)
        shared.download(f"{folder}/file", tmp_path / "warm").result(DEADLINE)
        calls: list[Callable[[], object]] = [
            lambda: shared.download(f"{folder}/missing", tmp_path / "a").result(DEADLINE),
            lambda: shared.read_file(f"{folder}/missing").result(DEADLINE),
            lambda: shared.read_file(f"{folder}/file", max_bytes=_MIB).result(DEADLINE),
            lambda: shared.download(folder, tmp_path / "b", max_bytes=_MIB).result(DEADLINE),
        ]
        with nothing_left():
            for number in range(_FAILURES):
                with pytest.raises(SandboxFileError):
                    calls[number % len(calls)]()
        self._works(shared, folder)

    def test_writes_that_fail_leave_nothing(self, shared: Sandbox, folder: str) -> None:
        data = b"x" * 2 * _MIB
        shared.write_file(f"{folder}/plain", data).result(DEADLINE)
        targets = [folder, f"{folder}/plain/below", f"{_NOT_WRITABLE}/file"]
        with nothing_left():
            for number in range(_FAILURES):
                with pytest.raises(SandboxFileError):
                    shared.write_file(targets[number % 3], data).result(DEADLINE)
        assert [i.path for i in shared.list_dir(folder).result(DEADLINE)] == [f"{folder}/plain"]
        assert shared.read_file(f"{folder}/plain").result(DEADLINE) == data

    def test_a_full_disk_is_a_file_error(self, session: Session, large: Path) -> None:
        sandbox = limited(session, disk_mb=16)
        for _ in range(3):
            with pytest.raises(SandboxFileError):
                sandbox.upload(large, "/workspace/file").result(DEADLINE)
            with pytest.raises(SandboxFileError, match="^/workspace/file: .* MiB .*disk_mb"):
                sandbox.write_file("/workspace/file", bytes(_LARGE)).result(DEADLINE)
            sandbox.exec(["rm", "-f", "/workspace/file"], check=True).result(DEADLINE)
        sandbox.write_file("/workspace/small", "fits").result(DEADLINE)
        assert sandbox.read_file("/workspace/small").result(DEADLINE) == b"fits"

    def test_a_file_that_shrinks_while_it_goes_up(
        self, shared: Sandbox, folder: str, large: Path
    ) -> None:
        upload = shared.upload(large, f"{folder}/there")
        until(lambda: _is_open(large) or upload.done(), "the file is being read")
        os.truncate(large, 0)
        error = upload.exception(DEADLINE)
        # No error if the whole file had been read before it shrank.
        assert error is None or isinstance(error, OSError | SandboxFileError), repr(error)
        self._works(shared, folder)

    def test_a_file_that_vanishes_while_its_folder_goes_up(
        self, shared: Sandbox, folder: str, large: Path
    ) -> None:
        later = large.parent / "later"
        later.write_text("soon gone")
        upload = shared.upload(large.parent, f"{folder}/there")
        until(lambda: _is_open(large) or upload.done(), "the first file is being read")
        later.unlink()
        error = upload.exception(DEADLINE)
        assert error is None or isinstance(error, OSError | SandboxFileError), repr(error)
        self._works(shared, folder)

    def test_an_upload_that_is_cancelled_leaves_nothing(
        self, shared: Sandbox, folder: str, large: Path
    ) -> None:
        with nothing_left():
            for _ in range(5):
                upload = shared.upload(large, f"{folder}/there")
                until(lambda: _is_open(large) or upload.done(), "the file is being read")  # noqa: B023
                upload.cancel()
                until(lambda: not _is_open(large), "the file is closed")
        self._works(shared, folder)

    def test_missing_and_refused_are_distinguished(self, shared: Sandbox, folder: str) -> None:
        shared.write_file(f"{folder}/plain", "").result(DEADLINE)
        with pytest.raises(SandboxFileNotFoundError):
            shared.read_file(f"{folder}/missing").result(DEADLINE)
        with pytest.raises(SandboxFileError) as caught:
            shared.read_file(folder).result(DEADLINE)
        assert not isinstance(caught.value, SandboxFileNotFoundError)

    def _works(self, shared: Sandbox, folder: str) -> None:
        data = token().encode()
        shared.write_file(f"{folder}/works", data).result(DEADLINE)
        assert shared.read_file(f"{folder}/works").result(DEADLINE) == data


def _is_open(path: Path) -> bool:
    for name in os.listdir("/proc/self/fd"):
        try:
            if os.readlink(f"/proc/self/fd/{name}") == str(path):
                return True
        except OSError:
            pass
    return False


def _descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def _tasks() -> int:
    async def count() -> int:
        return len(asyncio.all_tasks())

    return asyncio.run_coroutine_threadsafe(count(), _loop.get()).result(DEADLINE)

"""FakeProvider forgets sandboxes that are over, however."""

import errno
import os
import tempfile
from pathlib import Path

import anyio
import pytest

from sandboxkit import Operation, SandboxTerminatedError, Session
from sandboxkit.testing import FakeProvider, _tree, fake
from tests.traces import traces, use_up

pytestmark = pytest.mark.anyio


@pytest.mark.timeout(900)  # on a busy machine: these are many sandboxes
async def test_no_state_is_kept_of_ended_sandboxes() -> None:
    provider = FakeProvider()
    ids = await use_up(provider, None, 200)
    assert len(ids) == 200
    assert traces(provider, ids) == []
    await Operation(provider.aclose())


async def test_deletion_ends_a_command_whose_environment_cannot_be_read_yet(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Between `execve` and the set-up of its memory a process has an empty /proc/PID/environ.
    monkeypatch.setattr(_tree, "MARKER", "ANOTHER")
    monkeypatch.setattr(fake, "MARKER", "ANOTHER")
    real = _tree.members
    monkeypatch.setattr(_tree, "members", lambda mark, leader: real("unread", leader))
    async with Session(FakeProvider()) as session:
        sandbox = await session.sandbox().start()
        running = sandbox.exec(["sleep", "100"])
        await anyio.sleep(0.3)
        await sandbox.stop()
        with anyio.fail_after(60), pytest.raises(SandboxTerminatedError):
            await running


async def test_a_snapshot_that_cannot_be_copied_leaves_no_folder(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    async with Session(FakeProvider()) as session, session.sandbox() as sandbox:
        await sandbox.start()
        before = sorted(tmp_path.iterdir())
        monkeypatch.setattr(FakeProvider, "_copy", fail)
        with pytest.raises(OSError, match="No space"):
            await sandbox.snapshot()
        assert sorted(tmp_path.iterdir()) == before

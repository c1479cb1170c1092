"""As root each sandbox has a host uid of its own, as long as anything of it lives."""

import fcntl
import os
import signal
from contextlib import ExitStack
from pathlib import Path

import anyio
import pytest

from sandboxkit.errors import CapacityError
from sandboxkit.providers.local import LocalProvider, _host_uid
from tests.components import needs_root
from tests.local.conftest import PROGRAMS, client, launched, make

pytestmark = [
    pytest.mark.anyio,
    needs_root("only root has uids to lend"),
]


def uid_of(provider: LocalProvider, sandbox_id: str) -> int:
    """The host uid of a sandbox's first process."""
    return _uid(launched(provider, sandbox_id).init_pid)


def _uid(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text()
    real, effective, saved, files = next(
        line.split()[1:] for line in status.splitlines() if line.startswith("Uid:")
    )
    assert real == effective == saved == files
    return int(real)


def is_lent(uid: int) -> bool:
    """Whether somebody has the lock on a uid."""
    with ExitStack() as stack:
        file = _host_uid._open()
        stack.callback(os.close, file)
        return not _host_uid._set_lock(file, fcntl.F_WRLCK, uid)


async def test_sandboxes_of_one_owner_and_of_two_have_different_host_uids(
    provider: LocalProvider,
) -> None:
    other = LocalProvider()
    try:
        boxes = [await make(each) for each in (provider, provider, other)]
        found = [uid_of(box.provider, box.id) for box in boxes]
        assert len(set(found)) == 3
        lendable = _host_uid.uids()
        assert lendable is not None
        assert all(uid in lendable for uid in found)
        assert lendable.start not in found
    finally:
        await other.aclose()


async def test_uid_is_released_when_the_sandbox_ends(provider: LocalProvider) -> None:
    box = await make(provider)
    uid = uid_of(provider, box.id)
    assert is_lent(uid)
    await provider.delete(box.id)
    assert not is_lent(uid)


async def test_uid_of_a_detached_sandbox_outlives_its_owner(
    provider: LocalProvider, state: Path
) -> None:
    code = PROGRAMS["uid_of_a_detached_sandbox_outlives_its_owner"]
    with client(code) as owner:
        sandbox_id = owner.communicate()[0].strip()
    meta = provider._state.load(sandbox_id)
    assert meta is not None
    uid = _uid(max(meta.processes))
    assert is_lent(uid)
    await provider.delete(sandbox_id)
    assert not is_lent(uid)


async def test_killed_owner_leaves_no_uid_taken(provider: LocalProvider, state: Path) -> None:
    code = PROGRAMS["killed_owner_leaves_no_uid_taken"]
    with client(code) as owner:
        assert owner.stdout is not None
        meta = provider._state.load(owner.stdout.readline().strip())
        assert meta is not None
        uid = _uid(max(meta.processes))
        owner.send_signal(signal.SIGKILL)
    with anyio.fail_after(60):
        while is_lent(uid):  # the kernel's doing
            await anyio.sleep(0.01)


def test_taken_uids_are_not_lent_again(monkeypatch: pytest.MonkeyPatch) -> None:
    few = range(2_000_200_000, 2_000_200_004)
    monkeypatch.setattr(_host_uid, "uids", lambda: few)
    lent = [_host_uid.lend() for _ in few[1:]]
    try:
        assert {each.uid for each in lent if each is not None} == set(few[1:])
        with pytest.raises(CapacityError, match="no free uid"):
            _host_uid.lend()
    finally:
        for each in lent:
            assert each is not None
            each.give_back()
    again = _host_uid.lend()
    assert again is not None
    again.give_back()

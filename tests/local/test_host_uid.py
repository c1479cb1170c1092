"""As root each sandbox has a host uid of its own while anything of it lives, and uses up nobody else's counts."""

import fcntl
import os
import signal
from contextlib import ExitStack
from pathlib import Path

import anyio
import pytest

from sandboxkit import Session
from sandboxkit.errors import CapacityError
from sandboxkit.providers.local import LocalProvider, _host_uid
from tests.components import needs_root
from tests.host_counts import ATTACKS, VICTIMS
from tests.local.conftest import PROGRAMS, client, launched, make

pytestmark = [pytest.mark.anyio, needs_root("only root has uids to lend")]


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


async def test_sandboxes_of_any_owner_have_different_host_uids(provider: LocalProvider) -> None:
    other = LocalProvider()
    try:
        boxes = [await make(each) for each in (provider, provider, other)]
        found = [uid_of(box.provider, box.id) for box in boxes]
        assert len(set(found)) == 3
        lendable = _host_uid.uids()
        assert lendable is not None
        assert all(uid in lendable for uid in found)
        assert lendable.start not in found
        for box, uid in zip(boxes, found, strict=True):
            assert is_lent(uid)
            await box.provider.delete(box.id)
            assert not is_lent(uid)
    finally:
        await other.aclose()


async def test_uid_of_a_detached_sandbox_outlives_its_owner(provider: LocalProvider) -> None:
    code = PROGRAMS["uid_of_a_detached_sandbox_outlives_its_owner"]
    with client(code) as owner:
        sandbox_id = owner.communicate()[0].strip()
    meta = provider._state.load(sandbox_id)
    assert meta is not None
    uid = _uid(max(meta.processes))
    assert is_lent(uid)
    await provider.delete(sandbox_id)
    assert not is_lent(uid)


async def test_killed_owner_leaves_no_uid_taken(provider: LocalProvider) -> None:
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
    for _ in range(2):
        lent = [each for each in (_host_uid.lend() for _ in few[1:]) if each is not None]
        try:
            assert {each.uid for each in lent} == set(few[1:])
            with pytest.raises(CapacityError, match="no free uid"):
                _host_uid.lend()
        finally:
            for each in lent:
                each.give_back()


SECONDS = 60


@pytest.mark.parametrize("what", ATTACKS)
def test_other_sandboxes_keep_their_full_budget(what: str) -> None:
    with Session("local") as session:
        attacker = session.sandbox()
        attack = attacker.exec(["python3", "-c", ATTACKS[what]]).result(SECONDS)
        assert int(attack.stdout) > 20, attack.stderr
        for _ in range(2):
            victim = session.run(["python3", "-c", VICTIMS[what]]).result(SECONDS)
            assert victim.stdout == "fine\n", victim.stderr
        job = session.run_python(VICTIMS[what]).result(SECONDS)
        assert job.stdout == "fine\n", job.stderr
        # The sandbox that it was used up in can still be used.
        assert attacker.exec(["echo", "alive"]).result(SECONDS).stdout == "alive\n"


def test_commands_have_small_budgets_of_what_is_counted_for_a_user() -> None:
    script = "ulimit -Hn; ulimit -Hi; ulimit -Hq; ulimit -Hl; ulimit -Hc"
    code = "import resource as r\nfor n in ('NOFILE', 'SIGPENDING', 'MSGQUEUE', 'MEMLOCK'):"
    code += "\n    print(r.getrlimit(getattr(r, 'RLIMIT_' + n))[1])"
    with Session("local") as session:
        box = session.sandbox()
        found = box.exec(["bash", "-c", script]).result(SECONDS).stdout.split()
        assert found == ["4096", "1024", "131072", "64", "0"]
        for ran in (
            box.exec(["python3", "-c", code]).result(SECONDS),
            session.run_python(code).result(SECONDS),
        ):
            assert ran.stdout.split() == ["4096", "1024", "131072", "65536"]

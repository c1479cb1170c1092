"""As root and with subordinate ids each sandbox has a host uid of its own; other users' share theirs."""

import fcntl
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import anyio
import pytest

from sandboxkit import Session
from sandboxkit.errors import CapacityError
from sandboxkit.providers.local import LocalProvider, _host_uid
from sandboxkit.providers.local._host_uid import LeasedUid
from sandboxkit.providers.local._host_user import HostUser
from tests.components import needs_root, require_program
from tests.data_here import beside
from tests.host_counts import ATTACKS, VICTIMS
from tests.local.conftest import PROGRAMS, client, launched, make, said
from tests.reset.jobs import ENDS_CONNECTIONS

pytestmark = [pytest.mark.anyio, needs_root("root starts programs as other users and lends uids")]

ROOT = Path(__file__).parents[2]
ROOTS = _host_uid.uids()
GIVEN = f"{ATTACKS=}\n{VICTIMS=}\n{ENDS_CONNECTIONS=}\n"
"""What programs of these users may refer to."""
OUTPUTS: dict[str, dict[str, list[str]]] = beside(__file__, "ordinary_users.toml")
"""What programs write, without subordinate ids and with them."""


@contextmanager
def ordinary_client(
    code: str, state: Path, user: LeasedUid | None = None, *arguments: str
) -> "Iterator[subprocess.Popen[str]]":
    """A client of another user, who sees our Python and our source wherever they are."""
    host = HostUser()
    try:
        uid, gid = host.owner() if user is None else (user.uid, user.uid)
        state.mkdir(exist_ok=True)
        os.chown(state, uid, gid)
        state.chmod(0o700)
        paths = [entry for entry in sys.path if os.path.isdir(entry)]
        sources = [os.path.realpath(sys.base_prefix), sys.prefix, str(ROOT), str(state), *paths]
        prefix = host.prefix(list(dict.fromkeys(sources)), lent=user)
        with client(code, *arguments, prefix=prefix) as process:
            try:
                yield process
            finally:
                process.kill()  # or leaving the block waits for a client that hangs
    finally:
        host.close()


async def as_ordinary_user(
    code: str, state: Path, user: LeasedUid | None = None, *arguments: str
) -> str:
    """What such a client writes."""
    with ordinary_client(code, state, user, *arguments) as process:
        with anyio.fail_after(150):
            out, _ = await anyio.to_thread.run_sync(process.communicate, abandon_on_cancel=True)
        assert process.returncode == 0
        return str(out)


@pytest.mark.parametrize(("program", "lines"), OUTPUTS["without_ids"].items())
async def test_any_user_has_the_same_sandboxes(state: Path, program: str, lines: list[str]) -> None:
    assert (await as_ordinary_user(GIVEN + PROGRAMS[program], state)).splitlines() == lines


async def test_a_user_whose_counts_are_shared_can_still_run_sandboxes(state: Path) -> None:
    out = await as_ordinary_user(GIVEN + PROGRAMS["counts_are_shared"], state)
    *found, detail = out.splitlines()
    descriptors, timers = (sum(map(int, found[first:6:2])) for first in (0, 1))
    assert 4096 <= descriptors < 6000
    assert timers == 3 * 1024
    assert found[6:] == ["fine", "a job"]
    assert "share what the kernel counts" in detail


IDS = range(2_100_000_000, 2_200_000_000)[1000 * (os.getpid() % 10_000) :][:1000]
"""Different ones for each process of the tests."""


def _change(*commands: str) -> None:
    """Change accounts while no other process of the tests does: these programs do not wait for each other."""
    with Path("/tmp/sandboxkit-test-accounts").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        for command in commands:
            subprocess.run(command.split(), check=True, capture_output=True)


def _known(name: str) -> list[str]:
    """The files of accounts that have a name."""
    files = {file: Path("/etc", file) for file in ("passwd", "group", "subuid", "subgid")}
    return [each for each, path in files.items() if f"\n{name}:" in f"\n{path.read_text()}"]


@pytest.fixture(scope="module")
def user() -> Iterator[LeasedUid]:
    """A user of this machine with 1,000 subordinate ids, for as long as these tests."""
    if ROOTS is None or ROOTS.start < 2_000_000_000:
        pytest.skip("a container whose uids are few")
    require_program("newuidmap")
    name, number = f"sandboxkit-{os.getpid()}", 10_000 + os.getpid() % 10_000
    ids = f"{IDS[0]}-{IDS[-1]}"
    for file in ("/etc/subuid", "/etc/subgid"):
        Path(file).touch()
    try:
        # A system account: useradd gives it no ids of its own choice.
        _change(
            f"groupadd --gid {number} {name}",
            f"useradd --system --no-create-home --uid {number} --gid {number} {name}",
            f"usermod --add-subuids {ids} --add-subgids {ids} {name}",
        )
        yield LeasedUid(number, -1)
    finally:
        removals = {"passwd": f"userdel --force {name}", "group": f"groupdel {name}"}
        for file, command in removals.items():
            if file in _known(name):
                _change(command)
        Path(f"/tmp/sandboxkit-uids-{number}").unlink(missing_ok=True)
    assert _known(name) == []


def running() -> list[int]:
    """The processes with one of the subordinate ids."""
    found = []
    for path in Path("/proc").glob("[0-9]*/status"):
        with suppress(FileNotFoundError, ProcessLookupError):
            status = path.read_text()
            real = next(line.split()[1] for line in status.splitlines() if line[:4] == "Uid:")
            if int(real) in IDS and "State:\tZ" not in status:
                found.append(int(path.parent.name))
    return found


async def output(program: str, state: Path, user: LeasedUid, *arguments: str) -> list[str]:
    """What a program of the user writes."""
    code = GIVEN + PROGRAMS["uid_of"] + PROGRAMS[program]
    return (await as_ordinary_user(code, state, user, *arguments)).splitlines()


async def test_two_sandboxes_have_different_host_uids(user: LeasedUid, state: Path) -> None:
    lines = await output("two_sandboxes_have_uids_of_their_own", state, user)
    uids, texts, detail, left = lines
    first, second = map(int, uids.split())
    assert first != second
    assert {first, second} <= set(IDS[251:750])
    assert texts == "[b'1000', b'a file', b'0', b'a file', b'']"
    assert f"each sandbox runs as a uid of its own of the host, from {IDS[251]} to" in detail
    assert left == "[]"
    assert running() == []


@pytest.mark.parametrize(("program", "lines"), OUTPUTS["with_ids"].items())
async def test_a_user_with_subordinate_ids_gets_the_same_sandboxes_and_leaves_nothing(
    user: LeasedUid, state: Path, program: str, lines: list[str]
) -> None:
    assert await output(program, state, user) == lines
    assert running() == []


async def test_exhausted_limits_leave_neighbours_theirs(user: LeasedUid, state: Path) -> None:
    lines = await output("neighbours_keep_their_limits", state, user)
    assert all(int(count) >= 16 for count in lines[::3])
    assert lines[1::3] == lines[2::3] == ["fine"] * len(ATTACKS)


async def test_another_process_uses_and_deletes_a_sandbox(user: LeasedUid, state: Path) -> None:
    (sandbox_id,) = await output("a_detached_sandbox", state, user)
    assert running() != []
    assert await output("the_other_process_uses_it", state, user, sandbox_id) == ["b'here\\n'"]
    assert running() == []


async def test_killed_owner_leaves_nothing(user: LeasedUid, state: Path) -> None:
    with ordinary_client(PROGRAMS["a_command_in_the_background"], state, user) as owner:
        assert await said(owner) == "running"
        assert running() != []
        owner.kill()
    with anyio.fail_after(60):
        while running():  # the kernel's doing
            await anyio.sleep(0.01)


async def test_sandboxes_see_what_only_the_users_folder_hides(user: LeasedUid, state: Path) -> None:
    lines = await output("what_only_the_users_folder_hides", state, user)
    assert lines[:3] == ["shown", "what is shown", "True"]
    assert lines[3].endswith("private/file can be read by this user only")
    assert lines[4:8] == ["private", "shown", "what is private", "False"]
    assert lines[8:] == ["private", "shown", "what is shown", "False"]


@pytest.mark.parametrize("how", ["newuidmap_is_missing", "newuidmap_fails"])
async def test_sandboxes_run_as_the_user_without_ids(
    user: LeasedUid, state: Path, how: str
) -> None:
    missing = how == "newuidmap_is_missing"
    before = 'os.environ["PATH"] = "/nothing"' if missing else PROGRAMS[how]
    code = PROGRAMS["uid_of"] + before + PROGRAMS["as_the_user_and_why"]
    own, detail = (await as_ordinary_user(code, state, user)).splitlines()
    assert own == "True"
    assert "share what the kernel counts" in detail
    assert ("newuidmap and newgidmap are missing" if missing else "no luck") in detail


async def as_root_without(capability: str, program: str) -> list[str]:
    """Return what a program writes that root starts without a capability."""
    prefix = ["setpriv", "--bounding-set", f"-{capability}", "--"]
    code = GIVEN + PROGRAMS["uid_of"] + PROGRAMS[program]
    with client(code, prefix=prefix) as process:
        out, _ = await anyio.to_thread.run_sync(process.communicate)
    return str(out).splitlines()


@pytest.mark.parametrize(("program", "lines"), OUTPUTS["without_sys_admin"].items())
async def test_root_without_cap_sys_admin_has_the_same_sandboxes(
    program: str, lines: list[str]
) -> None:
    assert await as_root_without("sys_admin", program) == lines


async def test_root_without_cap_sys_admin_lends_host_uids() -> None:
    uids, texts, detail, left = await as_root_without(
        "sys_admin", "two_sandboxes_have_uids_of_their_own"
    )
    assert ROOTS is not None
    assert len(set(uids.split())) == 2
    assert all(int(uid) in ROOTS[1:] for uid in uids.split())
    assert texts == "[b'1000', b'a file', b'0', b'a file', b'']"
    assert f"with an image, a volume or a snapshot as uid {ROOTS[0]}" in detail
    assert left == "[]"


async def test_no_sandbox_has_the_uid_of_the_machines_root() -> None:
    (refused,) = await as_root_without("setuid", "a_refused_start")
    assert "it lacks CAP_SETUID" in refused


def uid_of(pid: int) -> int:
    """The host uid of a process."""
    status = Path(f"/proc/{pid}/status").read_text()
    (uids,) = (line.split()[1:] for line in status.splitlines() if line.startswith("Uid:"))
    assert len(set(uids)) == 1  # real, effective, saved, and of files
    return int(uids[0])


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
        found = [uid_of(launched(box.provider, box.id).init_pid) for box in boxes]
        assert len(set(found)) == 3
        lendable = _host_uid.uids()
        assert lendable is not None
        assert all(uid in lendable for uid in found)
        assert lendable.start not in found
        for box, uid in zip(boxes, found, strict=True):
            assert is_lent(uid)
            await box.inner.delete()
            assert not is_lent(uid)
    finally:
        await other.aclose()


async def test_uid_of_a_detached_sandbox_outlives_its_owner(provider: LocalProvider) -> None:
    with client(PROGRAMS["uid_of_a_detached_sandbox_outlives_its_owner"]) as owner:
        sandbox_id = owner.communicate()[0].strip()
    meta = provider.state.load(sandbox_id)
    assert meta is not None
    uid = uid_of(max(meta.processes))
    assert is_lent(uid)
    await provider.box(sandbox_id).delete()
    assert not is_lent(uid)


async def test_killed_owner_leaves_no_uid_taken(provider: LocalProvider) -> None:
    with client(PROGRAMS["killed_owner_leaves_no_uid_taken"]) as owner:
        assert owner.stdout is not None
        meta = provider.state.load(owner.stdout.readline().strip())
        assert meta is not None
        uid = uid_of(max(meta.processes))
        owner.send_signal(signal.SIGKILL)
    with anyio.fail_after(60):
        while is_lent(uid):  # the kernel's doing
            await anyio.sleep(0.01)


def test_taken_uids_are_not_lent_again() -> None:
    few = range(2_000_200_000, 2_000_200_004)
    for _ in range(2):
        lent = [_host_uid.lend(few) for _ in few[1:]]
        try:
            assert {each.uid for each in lent} == set(few[1:])
            with pytest.raises(CapacityError, match="no free uid"):
                _host_uid.lend(few)
        finally:
            for each in lent:
                each.give_back()


SECONDS = 60


def assert_others_keep_their_budget(session: Session, what: str) -> None:
    """Use something up in one sandbox, and need a little of it in others."""
    attacker = session.sandbox()
    attack = attacker.exec(["python3", "-c", ATTACKS[what]]).result(SECONDS)
    assert int(attack.stdout) > 20, attack.stderr
    for _ in range(2):
        victim = session.run(["python3", "-c", VICTIMS[what]]).result(SECONDS)
        assert victim.stdout == "fine\n", victim.stderr
    # The sandbox that it was used up in can still be used.
    assert attacker.exec(["echo", "alive"]).result(SECONDS).stdout == "alive\n"


@pytest.mark.parametrize("what", ATTACKS)
def test_other_sandboxes_keep_their_full_budget(what: str) -> None:
    with Session("local") as session:
        assert_others_keep_their_budget(session, what)
        job = session.run_python(VICTIMS[what]).result(SECONDS)
        assert job.stdout == "fine\n", job.stderr


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

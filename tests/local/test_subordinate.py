"""An ordinary user with subordinate ids: each sandbox has a host uid of its own, as root's have."""

import fcntl
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import anyio
import pytest

from sandboxkit.providers.local import _host_uid
from sandboxkit.providers.local._host_uid import LeasedUid
from tests.components import needs_program, needs_root
from tests.host_counts import ATTACKS, VICTIMS
from tests.local.test_unprivileged import (
    LIMITED,
    RESETS_AFTER_TCP,
    WITHOUT_CONTROL_GROUPS,
    as_ordinary_user,
    ordinary_client,
)

ROOTS = _host_uid.uids()
pytestmark = [
    pytest.mark.anyio,
    needs_root("root makes the user"),
    pytest.mark.skipif(
        ROOTS is None or ROOTS.start < 2_000_000_000,
        reason="a container whose uids are few",
    ),
    needs_program("newuidmap"),
]
IDS = range(2_100_000_000, 2_200_000_000)[1000 * (os.getpid() % 10_000) :][:1000]
"""Different ones for each process of the tests."""
UIDS = """
def uid_of(sandbox_id):
    pid = provider._known(sandbox_id).launched.init_pid
    uids = next(line for line in open(f"/proc/{pid}/status") if line.startswith("Uid:"))
    return int(uids.split()[1])
"""


def _in(file: str, name: str) -> bool:
    lines = Path("/etc", file).read_text().splitlines()
    return any(line.startswith(f"{name}:") for line in lines)


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True)


@contextmanager
def _alone() -> Iterator[None]:
    """No other process of the tests changes accounts: these programs do not wait for each other."""
    with Path("/tmp/sandboxkit-test-accounts").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@pytest.fixture(scope="module")
def user() -> Iterator[LeasedUid]:
    """A user of this machine with 1,000 subordinate ids, for as long as these tests."""
    name, number = f"sandboxkit-{os.getpid()}", str(10_000 + os.getpid() % 10_000)
    ids = f"{IDS[0]}-{IDS[-1]}"
    # A system account: useradd gives it no ids of its own choice.
    options = ["--system", "--no-create-home", "--uid", number, "--gid", number]
    try:
        with _alone():
            for file in ("/etc/subuid", "/etc/subgid"):
                Path(file).touch()
            _run("groupadd", "--gid", number, name)
            _run("useradd", *options, name)
            _run("usermod", "--add-subuids", ids, "--add-subgids", ids, name)
        yield LeasedUid(int(number), -1)
    finally:
        with _alone():
            for file, command in (
                ("passwd", ["userdel", "--force", name]),
                ("group", ["groupdel", name]),
            ):
                if _in(file, name):
                    _run(*command)
        Path(f"/tmp/sandboxkit-uids-{number}").unlink(missing_ok=True)
    assert not any(_in(file, name) for file in ("passwd", "group", "subuid", "subgid"))


def running() -> list[int]:
    """The processes with one of the subordinate ids."""
    found = []
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                status = Path("/proc", entry, "status").read_text()
            except (FileNotFoundError, ProcessLookupError):
                continue
            real = next(line.split()[1] for line in status.splitlines() if line[:4] == "Uid:")
            if int(real) in IDS and "State:\tZ" not in status:
                found.append(int(entry))
    return found


async def test_two_sandboxes_have_different_host_uids_and_neither_is_the_users(
    user: LeasedUid, state: Path
) -> None:
    out = await as_ordinary_user(
        UIDS
        + """
ids = [await provider.create(SandboxSpec(user=user)) for user in (None, "root")]
print(*(uid_of(each) for each in ids))
for each in ids:
    await provider.write_file(each, "/tmp/given", b"a file\\n", mode=None)
    await provider.exec(each, Command(("sh", "-c", "id -u; cat /tmp/given; ls -A /home")), output)
print(texts["stdout"].split(b"\\n"))
print((await provider.diagnose()).detail)
for each in ids:
    await provider.delete(each)
print(os.listdir(os.environ["SANDBOXKIT_STATE_DIR"]))
await provider.aclose()
""",
        state,
        user,
    )
    uids, texts, detail, left = out.splitlines()
    first, second = map(int, uids.split())
    assert first != second
    assert {first, second} <= set(IDS[251:750])
    assert texts == "[b'1000', b'a file', b'0', b'a file', b'']"
    assert f"each sandbox runs as a uid of its own of the host, from {IDS[251]} to" in detail
    assert left == "[]"
    assert running() == []


async def test_limits_of_processes_hold_as_for_a_user_without_ids(
    user: LeasedUid, state: Path
) -> None:
    assert await as_ordinary_user(WITHOUT_CONTROL_GROUPS, state, user) == LIMITED


async def test_a_sandbox_whose_job_ended_tcp_connections_can_be_reset(
    user: LeasedUid, state: Path
) -> None:
    assert await as_ordinary_user(RESETS_AFTER_TCP, state, user) == "0\n0\n"
    assert running() == []


async def test_a_sandbox_that_exhausts_its_limits_leaves_its_neighbours_theirs(
    user: LeasedUid, state: Path
) -> None:
    out = await as_ordinary_user(
        f"""
from sandboxkit import Session
async with Session("local") as session:
    for attack, victim in {[(ATTACKS[what], VICTIMS[what]) for what in ATTACKS]!r}:
        attacker = session.sandbox()
        print((await attacker.exec(["python3", "-c", attack])).stdout.strip())
        print((await session.run(["python3", "-c", victim])).stdout.strip())
        print((await session.run_python(victim)).stdout.strip())
await provider.aclose()
""",
        state,
        user,
    )
    lines = out.splitlines()
    assert all(int(count) >= 16 for count in lines[::3])
    assert lines[1::3] == lines[2::3] == ["fine"] * len(ATTACKS)


async def test_a_command_past_its_deadline_and_a_sandbox_past_its_lifetime_end(
    user: LeasedUid, state: Path
) -> None:
    out = await as_ordinary_user(
        """
from sandboxkit import Session
async with Session("local") as session:
    try:
        await session.run(["sleep", "600"], timeout=0.5)
    except CommandTimeoutError:
        print("ended")
sandbox_id = await provider.create(SandboxSpec(lifetime=60.0))
await provider.renew(sandbox_id, 0.001)
with anyio.fail_after(60):
    while os.listdir(os.environ["SANDBOXKIT_STATE_DIR"]):
        await anyio.sleep(0.01)
await provider.aclose()
""",
        state,
        user,
    )
    assert out.splitlines() == ["ended"]
    assert running() == []


async def test_another_process_can_use_and_delete_a_detached_sandbox(
    user: LeasedUid, state: Path
) -> None:
    out = await as_ordinary_user(
        """
print(await provider.create(SandboxSpec(detach=True, lifetime=60.0)))
await provider.aclose()
""",
        state,
        user,
    )
    assert running() != []
    out = await as_ordinary_user(
        f"""
await provider.exec({out.strip()!r}, Command(("echo", "here")), output)
print(texts["stdout"])
await provider.delete({out.strip()!r})
await provider.aclose()
""",
        state,
        user,
    )
    assert out.splitlines() == ["b'here\\n'"]
    assert running() == []


async def test_killed_owner_leaves_nothing(user: LeasedUid, state: Path) -> None:
    code = """
sandbox_id = await provider.create(SandboxSpec())
await provider.exec(sandbox_id, Command(("sh", "-c", "sleep 600 > /dev/null 2>&1 &")), output)
print("running", flush=True)
await anyio.sleep(600)
"""
    with ordinary_client(code, state, user) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == "running\n"
        assert running() != []
        owner.send_signal(signal.SIGKILL)
    with anyio.fail_after(60):
        while running():  # the kernel's doing
            await anyio.sleep(0.01)


async def test_sandboxes_with_an_image_run_as_the_user(user: LeasedUid, state: Path) -> None:
    out = await as_ordinary_user(
        UIDS
        + """
import tempfile
with tempfile.TemporaryDirectory() as image:
    os.mkdir(f"{image}/usr")
    sandbox_id = await provider.create(SandboxSpec(image=image))
    print(uid_of(sandbox_id) == os.getuid())
    await provider.delete(sandbox_id)
await provider.aclose()
""",
        state,
        user,
    )
    assert out.splitlines() == ["True"]


async def test_sandboxes_see_what_only_the_users_folder_hides(user: LeasedUid, state: Path) -> None:
    out = await as_ordinary_user(
        """
import logging, subprocess
logging.basicConfig(format="%(message)s", stream=sys.stdout)
host, home = provider._host, os.environ["SANDBOXKIT_STATE_DIR"]
os.umask(0o022)
for name in ("shown", "private"):
    os.mkdir(f"{home}/{name}")
    open(f"{home}/{name}/file", "w").write(f"what is {name}\\n")
def show(name):
    lent = host.lend([f"{home}/{name}"])
    prefix = host.prefix([f"{home}/{name}"], lent=lent)
    subprocess.run([*prefix, "sh", "-c", f"ls {home}; cat {home}/{name}/file"])
    print(lent is not None and lent.give_back() is None, flush=True)
show("shown")
os.chmod(f"{home}/private/file", 0o600)
show("private")
show("shown")
await provider.aclose()
""",
        state,
        user,
    )
    lines = out.splitlines()
    assert lines[:3] == ["shown", "what is shown", "True"]
    assert lines[3].endswith("private/file can be read by this user only")
    assert lines[4:8] == ["private", "shown", "what is private", "False"]
    assert lines[8:] == ["private", "shown", "what is shown", "False"]


async def test_a_start_of_a_dead_owner_is_ended(user: LeasedUid, state: Path) -> None:
    out = await as_ordinary_user(
        """
import subprocess
from sandboxkit.providers.local import _bwrap, _launch, _state
await provider.delete(await provider.create(SandboxSpec()))
while provider._sweeper.running:
    await anyio.sleep(0.001)  # its own sweep, since it began, would end the start too early
me, name = _state.OwnerProcess.me(), "local-0123456789abcdef"
dead = _state.OwnerProcess(me.pid, me.started - 1, me.namespace)
(provider._state.path / f".starting-{dead}-{name}").mkdir()
sources = next(iter(provider._host._ids._mounts))
lent = provider._host.lend(sources)
read, write = os.pipe()
stuck = subprocess.Popen(
    [*provider._host.prefix(sources, lent=lent), str(_bwrap.find()), "--setenv", _launch.MARK, name]
    + ["--args", str(read), "--", "/nothing"], pass_fds=[read], env={}
)
while f"\\nUid:\\t{lent.uid}" not in open(f"/proc/{stuck.pid}/status").read():
    await anyio.sleep(0.001)
print([info async for info in provider.list({})])
with anyio.fail_after(60):
    print(await anyio.to_thread.run_sync(stuck.wait))
await provider.aclose()
""",
        state,
        user,
    )
    assert out.splitlines() == ["[]", "-9"]
    assert running() == []


@pytest.mark.parametrize(
    ("before", "reason"),
    [
        ('os.environ["PATH"] = "/nothing"', "newuidmap and newgidmap are missing"),
        (
            'import shutil; open(os.environ["SANDBOXKIT_STATE_DIR"] + "/newuidmap", "w").write('
            '"#!/bin/sh\\necho no luck >&2; exit 1\\n"); '
            'os.chmod(os.environ["SANDBOXKIT_STATE_DIR"] + "/newuidmap", 0o755); '
            'os.environ["PATH"] = os.environ["SANDBOXKIT_STATE_DIR"] + ":" + os.environ["PATH"]',
            "no luck",
        ),
    ],
)
async def test_without_a_way_to_map_ids_sandboxes_run_as_the_user(
    user: LeasedUid, state: Path, before: str, reason: str
) -> None:
    out = await as_ordinary_user(
        UIDS
        + before
        + """
sandbox_id = await provider.create(SandboxSpec())
print(uid_of(sandbox_id) == os.getuid())
print((await provider.diagnose()).detail)
await provider.delete(sandbox_id)
await provider.aclose()
""",
        state,
        user,
    )
    own, detail = out.splitlines()
    assert own == "True"
    assert "share what the kernel counts" in detail
    assert reason in detail


async def test_a_sandbox_with_a_host_uid_of_its_own_mounts_a_dataset(
    user: LeasedUid, state: Path
) -> None:
    out = await as_ordinary_user(
        UIDS
        + """
from sandboxkit import Dataset
folder = os.environ["SANDBOXKIT_STATE_DIR"] + "/data"
os.mkdir(folder)
open(folder + "/file", "w").write("content")
os.chmod(folder + "/file", 0o600)
mounts = {"/data": Dataset(folder).digest}
for profile in ("standard", "strict"):
    sandbox_id = await provider.create(SandboxSpec(mounts=mounts, profile=profile))
    await provider.exec(sandbox_id, Command(("sh", "-c", "cat /data/file; rm -f /data/file")), output)
    print(uid_of(sandbox_id) != os.getuid())
print(texts["stdout"].decode(), texts["stderr"].count(b"Read-only file system"))
await provider.aclose()
""",
        state,
        user,
    )
    assert out.splitlines() == ["True", "True", "contentcontent 2"]

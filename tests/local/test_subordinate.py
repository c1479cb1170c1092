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
from tests.host_counts import ATTACKS
from tests.local.conftest import PROGRAMS
from tests.local.test_unprivileged import GIVEN, LIMITED, as_ordinary_user, ordinary_client

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


async def output(program: str, state: Path, user: LeasedUid, *arguments: str) -> list[str]:
    """What a program of the user writes."""
    code = GIVEN + PROGRAMS["uid_of"] + PROGRAMS[program]
    return (await as_ordinary_user(code, state, user, *arguments)).splitlines()


async def test_two_sandboxes_have_different_host_uids_and_neither_is_the_users(
    user: LeasedUid, state: Path
) -> None:
    lines = await output("two_sandboxes_have_uids_of_their_own", state, user)
    uids, texts, detail, left = lines
    first, second = map(int, uids.split())
    assert first != second
    assert {first, second} <= set(IDS[251:750])
    assert texts == "[b'1000', b'a file', b'0', b'a file', b'']"
    assert f"each sandbox runs as a uid of its own of the host, from {IDS[251]} to" in detail
    assert left == "[]"
    assert running() == []


@pytest.mark.parametrize(
    ("program", "lines"),
    [
        ("limits_without_control_groups", LIMITED),
        ("resets_after_tcp", ["0", "0"]),
        ("deadlines_end_commands_and_sandboxes", ["ended"]),
        ("an_image_runs_as_the_user", ["True"]),
        ("a_dataset_is_mounted", ["True", "True", "contentcontent 2"]),
        ("a_start_of_a_dead_owner_is_ended", ["[]", "-9"]),
    ],
)
async def test_a_user_with_subordinate_ids_gets_the_same_sandboxes_and_leaves_nothing(
    user: LeasedUid, state: Path, program: str, lines: list[str]
) -> None:
    assert await output(program, state, user) == lines
    assert running() == []


async def test_a_sandbox_that_exhausts_its_limits_leaves_its_neighbours_theirs(
    user: LeasedUid, state: Path
) -> None:
    lines = await output("neighbours_keep_their_limits", state, user)
    assert all(int(count) >= 16 for count in lines[::3])
    assert lines[1::3] == lines[2::3] == ["fine"] * len(ATTACKS)


async def test_another_process_can_use_and_delete_a_detached_sandbox(
    user: LeasedUid, state: Path
) -> None:
    (sandbox_id,) = await output("a_detached_sandbox", state, user)
    assert running() != []
    assert await output("the_other_process_uses_it", state, user, sandbox_id) == ["b'here\\n'"]
    assert running() == []


async def test_killed_owner_leaves_nothing(user: LeasedUid, state: Path) -> None:
    code = PROGRAMS["a_command_in_the_background"]
    with ordinary_client(code, state, user) as owner:
        assert owner.stdout is not None
        assert owner.stdout.readline() == "running\n"
        assert running() != []
        owner.send_signal(signal.SIGKILL)
    with anyio.fail_after(60):
        while running():  # the kernel's doing
            await anyio.sleep(0.01)


async def test_sandboxes_see_what_only_the_users_folder_hides(user: LeasedUid, state: Path) -> None:
    lines = await output("what_only_the_users_folder_hides", state, user)
    assert lines[:3] == ["shown", "what is shown", "True"]
    assert lines[3].endswith("private/file can be read by this user only")
    assert lines[4:8] == ["private", "shown", "what is private", "False"]
    assert lines[8:] == ["private", "shown", "what is shown", "False"]


@pytest.mark.parametrize(
    ("before", "reason"),
    [
        ('os.environ["PATH"] = "/nothing"', "newuidmap and newgidmap are missing"),
        (PROGRAMS["newuidmap_fails"], "no luck"),
    ],
    ids=["missing", "failing"],
)
async def test_without_a_way_to_map_ids_sandboxes_run_as_the_user(
    user: LeasedUid, state: Path, before: str, reason: str
) -> None:
    code = PROGRAMS["uid_of"] + before + PROGRAMS["as_the_user_and_why"]
    own, detail = (await as_ordinary_user(code, state, user)).splitlines()
    assert own == "True"
    assert "share what the kernel counts" in detail
    assert reason in detail

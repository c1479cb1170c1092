"""The provider as an ordinary user: the same sandboxes, and honest about what it cannot limit."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import anyio
import pytest

from sandboxkit.providers.local._host_uid import LeasedUid
from sandboxkit.providers.local._host_user import HostUser
from tests.components import needs_root
from tests.host_counts import ATTACKS, VICTIMS
from tests.local.conftest import PROGRAMS, client
from tests.reset.jobs import ENDS_CONNECTIONS

pytestmark = [
    pytest.mark.anyio,
    needs_root("root starts a program as another user"),
]
ROOT = Path(__file__).parents[2]
GIVEN = f"{ATTACKS=}\n{VICTIMS=}\n{ENDS_CONNECTIONS=}\n"
"""What programs of these users may refer to."""
LIMITED = ["True", "True", "True", "1", "True True True", "True None"]
"""What `limits_without_control_groups` writes where limits of processes stand in for control groups."""


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


@pytest.mark.parametrize(
    ("program", "lines"),
    [
        ("the_same_isolation", ["True", "[b'1000', b'42'] True", "[b'0', b'42'] True", "[]"]),
        ("limits_without_control_groups", LIMITED),
        ("resets_after_tcp", ["0", "0"]),
        ("snapshots_and_forks", ["kept more file linked"] * 4 + ["[]"]),
    ],
)
async def test_an_ordinary_user_gets_the_same_sandboxes(
    state: Path, program: str, lines: list[str]
) -> None:
    assert (await as_ordinary_user(GIVEN + PROGRAMS[program], state)).splitlines() == lines


async def test_ordinary_user_whose_counts_are_shared_can_still_start_and_run_sandboxes(
    state: Path,
) -> None:
    out = await as_ordinary_user(GIVEN + PROGRAMS["counts_are_shared"], state)
    *found, detail = out.splitlines()
    descriptors, timers = (sum(map(int, found[first:6:2])) for first in (0, 1))
    assert 4096 <= descriptors < 6000
    assert timers == 3 * 1024
    assert found[6:] == ["fine", "a job"]
    assert "share what the kernel counts" in detail

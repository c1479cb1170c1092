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
from tests.local.conftest import client
from tests.reset.jobs import ENDS_CONNECTIONS

pytestmark = [
    pytest.mark.anyio,
    needs_root("root starts a program as another user"),
]
ROOT = Path(__file__).parents[2]
WITHOUT_CONTROL_GROUPS = """
from sandboxkit.providers.local import _cgroup
assert not _cgroup.available(), "this machine delegates control groups to everybody"
for option in ({"memory_mb": 64}, {"pids": 10}, {"cpus": 1.0}):
    try:
        await provider.create(SandboxSpec(**option))
    except ConfigurationError as error:
        print("cannot be enforced" in str(error))
sandbox_id = await provider.create(SandboxSpec(disk_mb=16))
await provider.exec(sandbox_id, Command(("sh", "-c", "head -c 32M /dev/zero > /tmp/x")), output)
hog = "b = bytearray()\\nwhile True: b += b'x' * 10_000_000"
print((await provider.exec(sandbox_id, Command(("python3", "-c", hog)), output)).status)
import textwrap
bomb = textwrap.dedent('''
import os, time
n = 0
try:
    while n < 1000:
        if os.fork() == 0: time.sleep(600)
        n += 1
except BlockingIOError:
    print(n < 300)
''')
await provider.exec(sandbox_id, Command(("python3", "-c", bomb)), output)
print(texts["stdout"].decode().strip(), b"MemoryError" in texts["stderr"], b"No space" in texts["stderr"])
usage = await provider.usage(sandbox_id)
print(usage.processor_seconds > 0, usage.starved_seconds)  # what nobody counts can be feigned
await provider.delete(sandbox_id)
await provider.aclose()
"""
RESETS_AFTER_TCP = f"""
sandbox_id = await provider.create(SandboxSpec(profile="strict", reuse="reset"))
await provider.reset(sandbox_id)
for _ in range(2):
    print((await provider.exec(sandbox_id, Command(("python3", "-c", {ENDS_CONNECTIONS!r})), output)).status)
    await provider.reset(sandbox_id)
await provider.delete(sandbox_id)
await provider.aclose()
"""
LIMITED = "True\nTrue\nTrue\n1\nTrue True True\nTrue None\n"
"""What that writes where limits of processes stand in for control groups."""


@contextmanager
def ordinary_client(
    code: str, state: Path, user: LeasedUid | None = None
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
        with client(code, prefix=host.prefix(list(dict.fromkeys(sources)), lent=user)) as process:
            try:
                yield process
            finally:
                process.kill()  # or leaving the block waits for a client that hangs
    finally:
        host.close()


async def as_ordinary_user(code: str, state: Path, user: LeasedUid | None = None) -> str:
    """What such a client writes."""
    with ordinary_client(code, state, user) as process:
        with anyio.fail_after(150):
            out, _ = await anyio.to_thread.run_sync(process.communicate, abandon_on_cancel=True)
        assert process.returncode == 0
        return str(out)


async def test_ordinary_user_gets_the_same_isolation(state: Path) -> None:
    out = await as_ordinary_user(
        """
print(os.getuid() != 0)
for user in (None, "root"):
    sandbox_id = await provider.create(SandboxSpec(user=user))
    script = "id -u; cat /etc/shadow; kill -9 1; cat /proc/1/environ; ls -A /home; python -c 'print(6*7)'; echo > /proc/sys/kernel/core_pattern"
    await provider.exec(sandbox_id, Command(("sh", "-c", script)), output)
    print(texts.pop("stdout").split(), [info.id async for info in provider.list({})] == [sandbox_id])
    texts["stdout"] = b""
    await provider.delete(sandbox_id)
print(os.listdir(os.environ["SANDBOXKIT_STATE_DIR"]))
await provider.aclose()
""",
        state,
    )
    assert out.splitlines() == ["True", "[b'1000', b'42'] True", "[b'0', b'42'] True", "[]"]


async def test_ordinary_user_without_control_groups(state: Path) -> None:
    assert await as_ordinary_user(WITHOUT_CONTROL_GROUPS, state) == LIMITED


async def test_ordinary_user_can_reset_a_sandbox_whose_job_ended_tcp_connections(
    state: Path,
) -> None:
    assert await as_ordinary_user(RESETS_AFTER_TCP, state) == "0\n0\n"


async def test_ordinary_user_whose_counts_are_shared_can_still_start_and_run_sandboxes(
    state: Path,
) -> None:
    attacks = [ATTACKS[what] for what in ("descriptors in flight", "timers")]
    out = await as_ordinary_user(
        f"""
from sandboxkit import Session
async with Session("local") as session:
    for code in {attacks!r} * 3:
        attacker = session.sandbox()
        print((await attacker.exec(["python3", "-c", code])).stdout.strip())
    print((await session.run(["python3", "-c", {VICTIMS["timers"]!r}])).stdout.strip())
    print((await session.run_python("print('a job')")).stdout.strip())
    print((await session.diagnose()).detail)
await provider.aclose()
""",
        state,
    )
    *found, detail = out.splitlines()
    descriptors, timers = (sum(map(int, found[first:6:2])) for first in (0, 1))
    assert 4096 <= descriptors < 6000
    assert timers == 3 * 1024
    assert found[6:] == ["fine", "a job"]
    assert "share what the kernel counts" in detail

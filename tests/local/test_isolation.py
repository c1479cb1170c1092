"""What a program in a sandbox can see and reach of this machine."""

import os
import re
import shutil
import socket
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

from sandboxkit import Session
from sandboxkit.errors import ConfigurationError
from sandboxkit.providers.local import LocalProvider, _bwrap, _layout
from sandboxkit.providers.local._arguments import NO_TIME_WAIT
from tests.components import needs_root
from tests.local.conftest import PROGRAMS, Box, launched, make
from tests.local_here import require_local

pytestmark = pytest.mark.anyio


async def test_unix_sockets_of_the_host_cannot_be_reached(box: Box, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as named, socket.socket(socket.AF_UNIX) as abstract:
        path = tmp_path / "host.sock"
        named.bind(str(path))
        named.listen()
        os.chmod(path, 0o777)
        abstract.bind(f"\0sandboxkit-test-{os.getpid()}")
        abstract.listen()
        for address in (str(path), f"\\0sandboxkit-test-{os.getpid()}", "/run/docker.sock"):
            run = await box.python(
                f"import socket; socket.socket(socket.AF_UNIX).connect('{address}')"
            )
            assert run.status != 0
            assert "FileNotFoundError" in run.stderr or "ConnectionRefusedError" in run.stderr
    assert "sock" not in (await box.sh("cut -d' ' -f8 /proc/net/unix")).stdout


async def test_internet_shares_the_network_of_the_host(provider: LocalProvider) -> None:
    box = await make(provider, network="internet")
    run = await box.sh("readlink /proc/self/ns/net; cat /etc/resolv.conf")
    namespace, _, resolver = run.stdout.partition("\n")
    assert namespace == os.readlink("/proc/self/ns/net")
    assert resolver == Path("/etc/resolv.conf").read_text()


async def test_every_other_namespace_is_its_own(box: Box) -> None:
    run = await box.sh(
        "for n in user mnt pid net ipc uts cgroup; do readlink /proc/self/ns/$n; done"
    )
    ours = {os.readlink(f"/proc/self/ns/{entry}") for entry in os.listdir("/proc/self/ns")}
    found = set(run.stdout.split())
    assert len(found) == 7
    assert not found & ours


async def test_dangerous_system_calls_are_refused(box: Box) -> None:
    run = await box.python(PROGRAMS["dangerous_system_calls_are_refused"])
    assert run.stdout == "done\n", run.stderr


@needs_root("it reads a process that is not its own")
async def test_descriptors_of_the_host_do_not_leak(provider: LocalProvider, tmp_path: Path) -> None:
    with open(tmp_path / "secret", "w") as file:
        os.set_inheritable(file.fileno(), True)
        box = await make(provider)
        run = await box.sh("ls /proc/$$/fd")
    assert run.stdout.split() == ["0", "1", "2"]
    # PID 1 cannot be looked into from inside; from here its descriptors are no files of the host.
    init_pid = launched(provider, box.id).init_pid
    held = [os.readlink(f"/proc/{init_pid}/fd/{fd}") for fd in os.listdir(f"/proc/{init_pid}/fd")]
    paths = [name for name in held if name.startswith("/") and not name.startswith("/dev/null")]
    assert [name for name in paths if not name.startswith("/memfd:stderr")] == []


async def test_programs_of_the_host_are_read_only(box: Box) -> None:
    run = await box.sh("touch /usr/x; touch /usr/bin/x; touch $(dirname $(command -v python3))/x")
    assert run.status != 0
    assert run.stderr.count("Read-only file system") == 3


async def test_a_read_only_proc_sys_does_not_stop_a_start() -> None:
    """A container of Docker's has one, and a sandbox that is reset starts there all the same."""
    require_local()
    namespaces = ("--unshare-user", "--unshare-net", "--dev-bind", "/", "/")
    read_only = ("--ro-bind", "/proc/sys", "/proc/sys")
    done = await anyio.run_process(
        [str(_bwrap.find()), *namespaces, *read_only, "--", *NO_TIME_WAIT, "echo", "started"]
    )
    assert (done.stdout, done.stderr) == (b"started\n", b"")


ETC_FOLDER = Path(f"/etc/sandboxkit-test-{os.getpid()}")


@pytest.fixture
def etc_folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder like those of packages, of which only this process knows: what starts beside it would miss it later."""
    monkeypatch.setattr(_layout, "_SHARED_ETC", (*_layout._SHARED_ETC, ETC_FOLDER.name))
    ETC_FOLDER.mkdir()
    (ETC_FOLDER / "security.conf").write_text("settings")
    (ETC_FOLDER / "management.password").write_text("a secret")
    (ETC_FOLDER / "management.password").chmod(0o600)
    _layout.system.cache_clear()
    try:
        yield ETC_FOLDER
    finally:
        shutil.rmtree(ETC_FOLDER)
        _layout.system.cache_clear()


@needs_root("only root can put files into /etc")
@pytest.mark.parametrize("profile", ["standard", "strict"])
def test_etc_has_the_files_of_packages_without_secrets(etc_folder: Path, profile: str) -> None:
    with Session("local", profile="strict" if profile == "strict" else "standard") as session:
        box = session.sandbox()
        assert box.exec(["cat", f"{etc_folder}/security.conf"]).result(60).stdout == "settings"
        for command in (
            ["cat", f"{etc_folder}/management.password"],
            ["touch", f"{etc_folder}/new"],
        ):
            assert box.exec(command).result(60).returncode != 0


def test_etc_has_no_information_about_the_host() -> None:
    with Session("local") as session:
        listed = session.run(["ls", "/etc", "/etc/ssl"]).result(60).stdout.split()
    assert not {"shadow", "hostname", "machine-id", "ssh", "private", "sudoers"} & set(listed)


@pytest.mark.parametrize("user", ["sandbox", "root"])
async def test_no_user_of_a_sandbox_sees_or_changes_the_host(
    provider: LocalProvider, user: str
) -> None:
    box = await make(provider, user=user)
    found = (
        await box.sh("id -un; python3 -c 'import ssl, sqlite3'; ls -A /home /srv /mnt /run")
    ).stdout
    assert [line for line in found.split() if not line.endswith(":")] == [user]
    pattern = Path("/proc/sys/kernel/core_pattern")
    before = pattern.read_bytes()
    for name in (
        "sys/kernel/core_pattern",
        "sys/vm/swappiness",
        "sys/kernel/hostname",
        "sysrq-trigger",
    ):
        assert (await box.sh(f"echo b > /proc/{name}")).status != 0, name
    assert pattern.read_bytes() == before
    status = Path(f"/proc/{launched(provider, box.id).init_pid}/status").read_text()
    assert "0" not in re.findall(r"^Uid:(.*)", status, re.MULTILINE)[0].split()
    own = (await box.sh("grep -E 'CapEff|CapPrm|NoNewPrivs|Seccomp:' /proc/self/status")).stdout
    assert [line.split()[1] for line in own.splitlines()] == ["0" * 16, "0" * 16, "1", "2"]


async def test_only_some_folders_of_a_strict_root_can_be_written(provider: LocalProvider) -> None:
    touch = "touch /tmp/x /workspace/x ./y /dev/shm/x && pwd"
    for profile in ("standard", "strict"):
        box = await make(provider, profile=profile, workdir="/data/deep")
        assert (await box.sh(touch)).stdout == "/data/deep\n"
        root = await box.sh("for file in /x /etc/x /home/x /var/x; do touch $file || echo no; done")
        assert root.stdout == ("no\n" * 4 if profile == "strict" else "")


async def test_a_command_may_have_no_other_user_than_its_sandbox(provider: LocalProvider) -> None:
    for own, others in (("sandbox", ("root", "nobody", "0")), ("root", ("sandbox",))):
        box = await make(provider, user=own)
        for user in others:
            with pytest.raises(ConfigurationError, match="only user"):
                await box.run("id", user=user)
        assert (await box.run("id", "-un", user=own)).stdout == f"{own}\n"

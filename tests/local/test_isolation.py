"""What a program in a sandbox must not be able to do to this machine or to its sandbox."""

import os
import socket
from pathlib import Path

import anyio
import pytest

from sandboxkit.errors import ConfigurationError
from sandboxkit.providers.local import LocalProvider, _bwrap
from sandboxkit.providers.local._arguments import NO_TIME_WAIT
from tests.components import needs_root
from tests.local.conftest import Box, launched, make
from tests.local_here import require_local

pytestmark = pytest.mark.anyio


async def test_commands_run_as_sandbox_without_capabilities(box: Box) -> None:
    run = await box.sh("id -un; pwd; grep -E 'CapEff|CapPrm|NoNewPrivs|Seccomp:' /proc/self/status")
    assert run.stdout.splitlines()[:2] == ["sandbox", "/workspace"]
    facts = dict(line.split(":\t") for line in run.stdout.splitlines()[2:])
    assert facts == {
        "CapPrm": "0000000000000000",
        "CapEff": "0000000000000000",
        "NoNewPrivs": "1",
        "Seccomp": "2",
    }


async def test_root_in_the_sandbox_is_not_root_of_the_host(provider: LocalProvider) -> None:
    box = await make(provider, user="root")
    assert (await box.run("id", "-u")).stdout == "0\n"
    status = Path(f"/proc/{launched(provider, box.id).init_pid}/status").read_text()
    uids = next(line.split()[1:] for line in status.splitlines() if line.startswith("Uid:"))
    assert "0" not in uids


@pytest.mark.parametrize("user", ["sandbox", "root"])
async def test_host_secrets_are_not_there(provider: LocalProvider, user: str) -> None:
    box = await make(provider, user=user)
    run = await box.sh("cat /etc/shadow; ls /home /root/.ssh /var/lib /sys /boot 2>&1; echo end")
    assert "root:" not in run.stdout
    listed = await box.sh("ls -A /home /srv /mnt /run")
    assert [line for line in listed.stdout.split() if not line.endswith(":")] == []


@pytest.mark.parametrize("user", ["sandbox", "root"])
async def test_kernel_settings_cannot_be_written(provider: LocalProvider, user: str) -> None:
    box = await make(provider, user=user)
    before = Path("/proc/sys/kernel/core_pattern").read_bytes()
    for path in ("kernel/core_pattern", "vm/swappiness", "kernel/hostname", "fs/file-max"):
        run = await box.sh(f"echo hacked > /proc/sys/{path}")
        assert run.status != 0, path
    assert (await box.sh("echo b > /proc/sysrq-trigger")).status != 0
    assert Path("/proc/sys/kernel/core_pattern").read_bytes() == before


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


async def test_pid_1_cannot_be_killed_stopped_traced_or_read(box: Box) -> None:
    run = await box.python(
        """
import ctypes, os, signal
libc = ctypes.CDLL(None, use_errno=True)
for number in set(signal.Signals) - {signal.SIGCHLD}:
    try:
        os.kill(1, number)  # the kernel lets it through, and PID 1 never hears of it
    except PermissionError:
        pass
for request in (16, 0x4206):  # PTRACE_ATTACH, PTRACE_SEIZE
    if libc.ptrace(request, 1, 0, 0) == 0:
        print("traced", request)
for name in ("mem", "environ", "root", "cwd", "fd/0", "maps"):
    try:
        os.readlink(f"/proc/1/{name}") if name in ("root", "cwd", "fd/0") else open(f"/proc/1/{name}", "rb").read(1)
        print("read", name)
    except OSError:
        pass
print("done")
"""
    )
    assert run.stdout == "done\n", run.stderr
    assert (await box.run("true")).status == 0


async def test_new_namespaces_and_mounts_are_refused(box: Box) -> None:
    run = await box.python(
        """
import ctypes, errno
libc = ctypes.CDLL(None, use_errno=True)
for flag in (0x10000000, 0x20000, 0x20000000, 0x40000000, 0x8000000, 0x4000000, 0x2000000):
    assert libc.unshare(flag) == -1, hex(flag)
    # clone with the flag and SIGCHLD: a child must not come to be
    assert libc.syscall(56 if __import__("platform").machine() == "x86_64" else 220, flag | 17, 0, 0, 0, 0) == -1, hex(flag)
    assert ctypes.get_errno() == errno.EPERM
assert libc.mount(b"none", b"/tmp", b"tmpfs", 0, None) == -1
assert libc.umount2(b"/proc", 2) == -1
assert libc.setns(3, 0) == -1
assert libc.syscall(435, 0, 0) == -1 and ctypes.get_errno() == errno.ENOSYS
print("done")
"""
    )
    assert run.stdout == "done\n", run.stderr


async def test_dangerous_system_calls_are_refused(box: Box) -> None:
    run = await box.python(
        """
import ctypes, platform
libc = ctypes.CDLL(None, use_errno=True)
x86 = platform.machine() == "x86_64"
calls = {
    "io_uring_setup": 425, "io_uring_enter": 426,
    "keyctl": 250 if x86 else 219, "add_key": 248 if x86 else 217,
    "bpf": 321 if x86 else 280, "perf_event_open": 298 if x86 else 241,
    "userfaultfd": 323 if x86 else 282, "init_module": 175 if x86 else 105,
    "kexec_load": 246 if x86 else 104, "open_by_handle_at": 304 if x86 else 265,
    "fsopen": 430, "move_mount": 429, "open_tree": 428, "pidfd_getfd": 438, "chroot": 161 if x86 else 51,
    "quotactl": 179 if x86 else 60, "syslog": 103 if x86 else 116, "reboot": 169 if x86 else 142,
}
for name, number in calls.items():
    ctypes.set_errno(0)
    result = libc.syscall(number, 0, 0, 0, 0, 0)
    if result != -1 or ctypes.get_errno() != 1:
        print(name, result, ctypes.get_errno())
import socket
for family in (40, 17, 38, 29, 16 + 100):  # vsock, packet, alg, can, none
    try:
        socket.socket(family, socket.SOCK_RAW if family == 17 else socket.SOCK_STREAM)
        print("family", family)
    except PermissionError:
        pass
for family in (socket.AF_INET, socket.AF_INET6, socket.AF_UNIX, socket.AF_NETLINK):
    kind = socket.SOCK_RAW if family == socket.AF_NETLINK else socket.SOCK_STREAM
    socket.socket(family, kind).close()
print("done")
"""
    )
    assert run.stdout == "done\n", run.stderr


async def test_environment_of_the_host_does_not_leak(
    provider: LocalProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOST_SECRET", "hunter2")
    box = await make(provider, env={"GIVEN": "yes"})
    lines = (await box.run("env")).stdout.splitlines()
    names = {line.partition("=")[0] for line in lines} - {"PWD", "SHLVL", "_"}
    assert names == {
        *("GIVEN", "HOME", "LANG", "LOGNAME", "PATH", "USER"),
    }
    assert "HOME=/workspace" in lines
    assert "LANG=C.UTF-8" in lines


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


async def test_strict_root_is_read_only_and_some_folders_are_not(provider: LocalProvider) -> None:
    box = await make(provider, profile="strict", workdir="/data")
    assert (await box.sh("touch /x /etc/x /home/x /var/x")).status != 0
    assert (
        await box.sh("touch /tmp/x /workspace/x /data/x ./y /dev/shm/x && pwd")
    ).stdout == "/data\n"


async def test_standard_root_is_writable(box: Box) -> None:
    assert (await box.sh("touch /x /etc/x /home/x /tmp/x /workspace/x && echo ok")).stdout == "ok\n"


async def test_another_user_of_a_command_is_refused(box: Box) -> None:
    assert (await box.run("id", "-un", user="sandbox")).stdout == "sandbox\n"
    for user in ("root", "nobody", "0"):
        with pytest.raises(ConfigurationError, match="only user"):
            await box.run("id", user=user)


async def test_python_and_python3_both_work(box: Box) -> None:
    for name in ("python", "python3"):
        run = await box.run(name, "-c", "import ssl, sqlite3, sys; print(sys.version_info[:2])")
        import sys

        assert run.stdout == f"{sys.version_info[:2]}\n", run.stderr


async def test_a_read_only_proc_sys_does_not_stop_a_start() -> None:
    """A container of Docker's has one, and a sandbox that is reset starts there all the same."""
    require_local()
    namespaces = ("--unshare-user", "--unshare-net", "--dev-bind", "/", "/")
    read_only = ("--ro-bind", "/proc/sys", "/proc/sys")
    done = await anyio.run_process(
        [str(_bwrap.find()), *namespaces, *read_only, "--", *NO_TIME_WAIT, "echo", "started"]
    )
    assert (done.stdout, done.stderr) == (b"started\n", b"")

"""What a program in a sandbox can see and reach of this machine, and the system calls that it may make."""

import errno
import json
import operator
import os
import re
import shutil
import socket
import struct
from collections.abc import Iterator
from pathlib import Path

import anyio
import pytest

from sandboxkit.errors import ConfigurationError
from sandboxkit.providers import _agent
from sandboxkit.providers.local import LocalProvider, _bwrap, _layout, _seccomp
from sandboxkit.providers.local._arguments import SET
from tests.components import needs_root
from tests.local.conftest import Box, launched, make
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
            code = f"import socket; socket.socket(socket.AF_UNIX).connect('{address}')"
            run = await box.python(code)
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
    names = "user mnt pid net ipc uts cgroup"
    run = await box.sh(f"for n in {names}; do readlink /proc/self/ns/$n; done")
    ours = {os.readlink(f"/proc/self/ns/{entry}") for entry in os.listdir("/proc/self/ns")}
    found = set(run.stdout.split())
    assert len(found) == 7
    assert not found & ours


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
    read_only = ("--dev-bind", "/", "/", "--ro-bind", "/proc/sys", "/proc/sys", "--", *SET)
    own = [str(_bwrap.find()), "--unshare-user", "--unshare-net", *read_only, "/proc/sys/net/x"]
    done = await anyio.run_process([*own, "echo", "started"])
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
async def test_etc_has_the_files_of_packages_alone(
    provider: LocalProvider, etc_folder: Path, profile: str
) -> None:
    box = await make(provider, profile=profile)
    assert (await box.sh(f"cat {etc_folder}/security.conf")).stdout == "settings"
    for command in ("cat {}/management.password", "touch {}/new"):
        assert (await box.sh(command.format(etc_folder))).status != 0
    listed = (await box.sh("ls /etc /etc/ssl")).stdout.split()
    assert not {"shadow", "hostname", "machine-id", "ssh", "private", "sudoers"} & set(listed)


@pytest.mark.parametrize("user", ["sandbox", "root"])
async def test_no_user_sees_or_changes_the_host(provider: LocalProvider, user: str) -> None:
    box = await make(provider, user=user)
    done = await box.sh("id -un; python3 -c 'import ssl, sqlite3'; ls -A /home /srv /mnt /run")
    assert [line for line in done.stdout.split() if not line.endswith(":")] == [user]
    pattern = Path("/proc/sys/kernel/core_pattern")
    before = pattern.read_bytes()
    names = ("sys/kernel/core_pattern", "sys/vm/swappiness", "sys/kernel/hostname")
    for name in (*names, "sysrq-trigger"):
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


PROFILE = json.loads(Path(_agent.__file__).with_name("seccomp.json").read_bytes())
NUMBERS = json.loads(Path(_seccomp.__file__).with_name("syscalls.json").read_bytes())
ALLOW, KILL = 0x7FFF0000, 0x80000000
ARCHITECTURES = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}


def interpret(program: bytes, arch: int, number: int, *args: int) -> int:
    """What the kernel would do with this call."""
    data = struct.pack("=iIQ6Q", number, arch, 0, *(args + (0,) * 6)[:6])
    code = [struct.unpack_from("=HBBI", program, at) for at in range(0, len(program), 8)]
    at = accumulator = 0
    while True:
        kind, if_true, if_false, value = code[at]
        at += 1
        if kind == 0x20:
            (accumulator,) = struct.unpack_from("=I", data, value)
        elif kind == 0x54:
            accumulator &= value
        elif kind == 0x06:
            return int(value)
        else:
            test = {0x15: operator.eq, 0x25: operator.gt, 0x35: operator.ge}[kind]
            at += if_true if test(accumulator, value) else if_false


@pytest.fixture(params=ARCHITECTURES)
def arch(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def program(arch: str) -> bytes:
    """The compiled profile, which an interpreter of its instructions runs."""
    return _seccomp.compile_profile(PROFILE, NUMBERS[arch], ARCHITECTURES[arch])


def test_every_call_is_as_in_the_profile(arch: str, program: bytes) -> None:
    always = {
        name
        for rule in PROFILE["syscalls"]
        if not rule["args"] and rule["action"] == "SCMP_ACT_ALLOW"
        for name in rule["names"]
    }
    allowed = {NUMBERS[arch][name] for name in always if name in NUMBERS[arch]}
    # Programs go on without these, as without a call that only later kernels have; advice on files does nothing.
    errors = dict.fromkeys([*range(336, 424), *range(467, 600)], errno.ENOSYS)
    for rule in PROFILE["syscalls"]:
        if "errnoRet" in rule:
            errors.update((NUMBERS[arch][name], rule["errnoRet"]) for name in rule["names"])
    special = {NUMBERS[arch][name] for name in ("socket", "clone", "personality")}
    for number in set(range(600)) - special:
        refused = 0x00050000 | errors.get(number, errno.EPERM)
        expected = ALLOW if number in allowed else refused
        assert interpret(program, ARCHITECTURES[arch], number) == expected, number


def test_arguments_decide(arch: str, program: bytes) -> None:
    def call(name: str, *args: int) -> int:
        return interpret(program, ARCHITECTURES[arch], NUMBERS[arch][name], *args)

    for family in (1, 2, 10, 16):
        assert call("socket", family) == ALLOW
    for family in (17, 38, 40, 1 << 32 | 1):
        assert call("socket", family) == 0x00050001
    assert call("clone", 0x003D0F00) == ALLOW
    for flag in (0x20000, 0x2000000, 0x4000000, 0x8000000, 0x10000000, 0x20000000, 0x40000000):
        assert call("clone", 0x003D0F00 | flag) == 0x00050001
    assert call("clone3") == 0x00050000 | 38
    assert call("personality", 0x60008) == call("personality", 0xFFFFFFFF) == ALLOW
    assert call("personality", 0x60009) == call("personality", 1 << 32) == 0x00050001


def test_calls_of_other_architectures_are_fatal(arch: str, program: bytes) -> None:
    other = next(value for name, value in ARCHITECTURES.items() if name != arch)
    assert interpret(program, other, 0) == KILL
    assert interpret(program, 0x40000003, 1) == KILL
    if arch == "x86_64":
        assert interpret(program, ARCHITECTURES[arch], 0x40000000) == KILL


def test_every_name_has_a_number() -> None:
    names = {name for rule in PROFILE["syscalls"] for name in rule["names"]}
    assert names <= NUMBERS["x86_64"].keys()
    assert {"openat", "clone", "socket", "execve"} <= NUMBERS["aarch64"].keys()

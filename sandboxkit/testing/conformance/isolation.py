"""Tests that a program in a sandbox cannot exceed its privileges and limits."""

import subprocess
import sys
import tempfile
import time
from pathlib import Path

from sandboxkit import CommandTimeoutError, Sandbox, Session
from sandboxkit.testing.conformance._base import DEADLINE, Conformance, token
from sandboxkit.testing.conformance._pytest import pytest
from sandboxkit.testing.conformance.kill import alive


def python(sandbox: Sandbox, code: str) -> str:
    """Run Python code in the sandbox and return its output; fail the test if the code fails."""
    result = sandbox.exec(["python3", "-c", code], timeout=DEADLINE).result()
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


class IsolationConformance(Conformance):
    """Privileges, this machine's secrets, network and limits."""

    def test_files_of_this_machine_are_out_of_reach(self, shared: Sandbox) -> None:
        mark = token()
        with tempfile.TemporaryDirectory() as folder:
            secret = Path(folder) / "secret"
            secret.write_text(mark)
            # Any user of this machine may read the file.
            secret.chmod(0o644)
            secret.parent.chmod(0o755)
            # In a script, because FakeProvider maps arguments that are paths into the sandbox.
            found = shared.exec(["sh", "-c", f"cat {secret}"]).result(DEADLINE)
        assert mark not in found.stdout

    def test_the_password_file_is_not_this_machines(self, shared: Sandbox) -> None:
        result = shared.exec(["cat", "/etc/shadow"]).result(DEADLINE)
        try:
            ours = Path("/etc/shadow").read_bytes()
        except PermissionError:
            ours = b""
        assert result.stdout_bytes == b"" or result.stdout_bytes != ours

    def test_processes_of_this_machine_are_invisible(self, shared: Sandbox) -> None:
        mark = token()
        command = [sys.executable, "-c", "print(flush=True); input()", mark]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            assert process.stdin is not None
            process.stdout.readline()
            assert not alive(shared, mark)
            process.stdin.write(b"\n")

    def test_processes_of_another_sandbox_are_invisible(
        self, session: Session, shared: Sandbox
    ) -> None:
        mark, other = token(), session.sandbox()
        process = other.exec(["sh", "-c", "echo ready; while :; do sleep 1; done", mark])
        assert next(iter(process.stdout.lines())) == "ready"
        assert alive(other, mark)
        assert not alive(shared, mark)

    def test_commands_have_no_capabilities(self, shared: Sandbox) -> None:
        lines = python(shared, "print(open('/proc/self/status').read())").splitlines()
        status = dict(line.split(":\t", 1) for line in lines if ":\t" in line)
        for name in ("CapInh", "CapPrm", "CapEff"):
            assert int(status[name], 16) == 0, name
        # gVisor has no ambient capabilities.
        assert int(status.get("CapAmb", "0"), 16) == 0

    def test_commands_cannot_gain_privileges(self, shared: Sandbox) -> None:
        get_no_new_privs = 39
        code = f"import ctypes; print(ctypes.CDLL(None).prctl({get_no_new_privs}, 0, 0, 0, 0))"
        assert python(shared, code) == "1"

    def test_signals_do_not_end_the_first_process(self, shared: Sandbox) -> None:
        for number in (1, 2, 3, 9, 11, 15, 19):
            shared.exec(["sh", "-c", f"kill -{number} 1"]).result(DEADLINE)
            assert shared.exec(["echo", "alive"]).result(DEADLINE).stdout == "alive\n"

    def test_the_first_process_cannot_be_traced_or_read(self, shared: Sandbox) -> None:
        code = """
import ctypes, os
assert ctypes.CDLL(None).ptrace(16, 1, 0, 0) == -1
for path in ("mem", "environ", "maps"):
    try:
        data = open(f"/proc/1/{path}", "rb").read(1)
    except OSError:
        continue
    assert data == b"", path
try:
    links = [os.readlink(f"/proc/1/fd/{name}") for name in os.listdir("/proc/1/fd")]
except OSError:
    print("refused")
"""
        assert python(shared, code) == "refused"

    def test_namespaces_and_mounts_are_refused(self, shared: Sandbox) -> None:
        code = """
import ctypes
libc = ctypes.CDLL(None)
for flag in (0x10000000, 0x00020000, 0x20000000, 0x40000000):
    assert libc.unshare(flag) == -1, hex(flag)
assert libc.mount(b"none", b"/mnt", b"tmpfs", 0, None) == -1
assert libc.umount2(b"/proc", 2) == -1
print("refused")
"""
        assert python(shared, code) == "refused"

    def test_the_kernels_settings_are_read_only(self, shared: Sandbox) -> None:
        script = "echo x > /proc/sys/kernel/core_pattern"
        before = shared.exec(["cat", "/proc/sys/kernel/core_pattern"]).result(DEADLINE).stdout
        assert shared.exec(["sh", "-c", script]).result(DEADLINE).returncode != 0
        after = shared.exec(["cat", "/proc/sys/kernel/core_pattern"]).result(DEADLINE).stdout
        assert before == after

    def test_disks_of_this_machine_are_not_there(self, shared: Sandbox) -> None:
        code = """
import os, stat
print([n for n in os.listdir("/dev") if stat.S_ISBLK(os.lstat(f"/dev/{n}").st_mode)])
"""
        assert python(shared, code) == "[]"

    def test_network_none_has_a_loopback_interface_only(self, shared: Sandbox) -> None:
        code = "import socket; print([name for _, name in socket.if_nameindex()])"
        assert python(shared, code) == "['lo']"

    def test_network_none_fails_at_once(self, shared: Sandbox) -> None:
        code = """
import socket
try:
    socket.create_connection(("1.1.1.1", 80), timeout=20)
except OSError as error:
    print("refused")
"""
        started = time.monotonic()
        assert python(shared, code) == "refused"
        assert time.monotonic() - started < 10

    def test_loopback_works_without_a_network(self, shared: Sandbox) -> None:
        code = """
import socket
with socket.create_server(("127.0.0.1", 0)) as server:
    with socket.create_connection(server.getsockname()) as client:
        print("connected")
"""
        assert python(shared, code) == "connected"

    def test_pids_bounds_the_processes(self, session: Session) -> None:
        code = """
import os, signal
children = []
try:
    while len(children) < 500:
        child = os.fork()
        if not child:
            signal.pause()
        children.append(child)
except OSError:
    pass
for child in children:
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
print(len(children))
"""
        # A provider may add headroom, so that commands still start at the limit.
        assert 0 < int(python(session.sandbox(pids=64), code)) < 128

    def test_a_fork_bomb_leaves_a_usable_sandbox(self, session: Session) -> None:
        sandbox = session.sandbox(pids=64).start().result(DEADLINE)
        code = """
import os
while True:
    try:
        os.fork()
    except OSError:
        pass
"""
        with pytest.raises(CommandTimeoutError):
            sandbox.exec(["python3", "-c", code], timeout=2).result(DEADLINE)
        assert sandbox.exec(["echo", "usable"]).result(DEADLINE).stdout == "usable\n"

    def test_memory_is_bounded(self, session: Session) -> None:
        sandbox = session.sandbox(memory_mb=128).start().result(DEADLINE)
        hog = ["python3", "-c", "data = b'x' * (1 << 30)"]
        assert sandbox.exec(hog).result(DEADLINE).returncode == 137
        assert sandbox.exec(["echo", "usable"]).result(DEADLINE).stdout == "usable\n"

"""The interpreter itself: its start, its jobs' ends, and what a job may do to it."""

import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator

import anyio
import pytest

from sandboxkit.errors import CommandStartError, ConfigurationError, SandboxTerminatedError
from sandboxkit.providers._agent import requests
from sandboxkit.types import Interpreter, StdinItem
from tests.agent.conftest import Run
from tests.agent.python_boxes import KINDS, PYTHON, PythonBox, python_box

pytestmark = pytest.mark.anyio

TREE = """
import os, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.setsid()
        while True:
            time.sleep(1)
    os._exit(0)
os.system("sleep 1001 & setsid sleep 1002 &")
print("ready", flush=True)
time.sleep(1000)
"""

PROCESSES = """
import os
for each in os.listdir("/proc"):
    if each.isdigit() and int(each) not in (1, os.getpid(), os.getppid()):
        words = open(f"/proc/{each}/cmdline").read().split("\\0")
        if "agent" not in words[0]:  # a reaper
            print(*words)
"""

# Prints each way in that was open.
REACH = """
import ctypes, os, resource, signal, sys
libc, parent = ctypes.CDLL(None, use_errno=True), os.getppid()
opened = []
descriptors = [each for each in range(3, 64) if os.path.exists(f"/proc/self/fd/{each}")]
def attempt(name, do):
    try:
        if do() != -1:
            opened.append(name)
    except OSError:
        pass
attempt("ptrace", lambda: libc.ptrace(16, parent, 0, 0))
attempt("seize", lambda: libc.ptrace(0x4206, parent, 0, 0))
for name in ("mem", "environ", "maps", "syscall", "stack", "io", "auxv"):
    attempt(name, lambda: os.open(f"/proc/{parent}/{name}", os.O_RDONLY))
attempt("mem for writing", lambda: os.open(f"/proc/{parent}/mem", os.O_RDWR))
for name in ("cwd", "root", "exe", "fd/3"):
    attempt(name, lambda: os.readlink(f"/proc/{parent}/{name}"))
attempt("descriptors", lambda: os.listdir(f"/proc/{parent}/fd"))
attempt("a descriptor", lambda: libc.syscall(438, os.pidfd_open(parent), 3, 0))
buffer = ctypes.create_string_buffer(8)
vector = (ctypes.c_size_t * 2)(ctypes.addressof(buffer), 8)
there = (ctypes.c_size_t * 2)(id(None), 8)
attempt("reading memory", lambda: libc.process_vm_readv(parent, vector, 1, there, 1, 0))
attempt("writing memory", lambda: libc.process_vm_writev(parent, vector, 1, there, 1, 0))
if "signals" in sys.argv:
    for number in (0, signal.SIGTERM, signal.SIGSTOP, signal.SIGKILL):
        attempt(f"signal {number}", lambda: os.kill(parent, number))
    attempt("limits", lambda: resource.prlimit(parent, resource.RLIMIT_NOFILE, (3, 3)))
    attempt("priority", lambda: os.setpriority(os.PRIO_PROCESS, parent, 19))
    attempt("affinity", lambda: os.sched_setaffinity(parent, {0}))
print(opened, descriptors)
"""


@pytest.mark.parametrize("kind", KINDS)
async def test_a_cancelled_job_leaves_nothing_and_the_interpreter_lives(kind: str) -> None:
    async with python_box(kind, Interpreter(PYTHON)) as box:
        assert (await box.exec("sh", "-c", "sleep 2001 > /dev/null &")).status == 0
        run = Run()
        async with anyio.create_task_group() as group:

            async def body() -> None:
                await box.job(TREE, run=run)

            group.start_soon(body)
            await run.started.wait()
            group.cancel_scope.cancel()
        assert await box.says(PROCESSES) == "sleep 2001"


async def test_background_processes_of_a_job_live_on() -> None:
    async with python_box("local", Interpreter(PYTHON)) as box:
        await box.says("import os; os.system('sleep 1001 > /dev/null 2>&1 &')")
        assert "1001" in await box.says(PROCESSES)


async def test_a_second_job_at_the_same_time_is_refused() -> None:
    async with python_box("local", Interpreter(PYTHON)) as box:
        refused = anyio.Event()
        run = Run()

        async def line() -> AsyncIterator[StdinItem]:
            await refused.wait()
            yield b"go on\n"

        async def first() -> None:
            await box.job("print('up', flush=True); print(input())", run=run, stdin=line())

        async with anyio.create_task_group() as group:
            group.start_soon(first)
            await run.started.wait()
            with pytest.raises(CommandStartError, match="another job runs") as busy:
                await box.job("print(1)")
            assert busy.value.errno == 16
            refused.set()
        assert run.stdout == b"up\ngo on\n"
        assert await box.says("print(3)") == "3"


@pytest.mark.parametrize(
    ("interpreter", "error", "words"),
    [
        (Interpreter("nopython"), CommandStartError, "no program 'nopython'|\"nopython\""),
        (Interpreter("/bin/cat"), CommandStartError, "no Python that jobs can be forked from"),
        (Interpreter("/bin/true"), CommandStartError, "no Python that jobs can be forked from"),
        (Interpreter(PYTHON, ("nosuch",)), ConfigurationError, "cannot import nosuch"),
        (Interpreter(PYTHON, (), "1 / 0"), ConfigurationError, "the setup fails: ZeroDivision"),
    ],
    ids=["missing", "another program", "one that ends", "a bad preload", "a bad setup"],
)
async def test_an_interpreter_that_cannot_start_says_why(
    interpreter: Interpreter, error: type[Exception], words: str
) -> None:
    async with python_box("local") as box:
        with pytest.raises(error, match=words):
            await box.provider.start_interpreter(box.id, interpreter)
        with pytest.raises(ConfigurationError, match="no interpreter"):
            await box.job("print(1)")
        assert (await box.exec("echo", "1")).stdout == b"1\n"


async def test_an_interpreter_starts_once_and_before_any_command() -> None:
    async with python_box("local", Interpreter(PYTHON)) as box:
        with pytest.raises(CommandStartError, match="once, and before any command"):
            await box.provider.start_interpreter(box.id, Interpreter(PYTHON))
        assert await box.says("print(1)") == "1"
    async with python_box("local") as box:
        await box.exec("true")
        with pytest.raises(CommandStartError, match="once, and before any command"):
            await box.provider.start_interpreter(box.id, Interpreter(PYTHON))


async def test_a_job_that_cannot_start_says_why() -> None:
    async with python_box("local", Interpreter(PYTHON)) as box:
        with pytest.raises(CommandStartError, match="/nowhere") as error:
            await box.job("print(1)", cwd="/nowhere")
        assert error.value.errno == 2
        with pytest.raises(CommandStartError, match="NUL"):
            await box.job("print(1)\0")
        assert await box.says("print(1)") == "1"


async def test_a_job_of_another_user_cannot_reach_the_interpreter_at_all() -> None:
    async with python_box("docker", Interpreter(PYTHON)) as box:
        assert (await box.job(REACH, "signals")).stdout == b"[] []\n"
        assert await box.says("print(1)") == "1"


async def test_a_job_of_the_same_user_cannot_look_into_the_interpreter() -> None:
    async with python_box("local", Interpreter(PYTHON)) as box:
        assert (await box.job(REACH)).stdout == b"[] []\n"
        stop = "import os, time; os.kill(os.getppid(), 19); time.sleep(0.1); print('on')"
        assert await box.says(stop) == "on"
        for number in (1, 2, 15, 17, 34):
            assert await box.says(f"import os; os.kill(os.getppid(), {number}); print(1)") == "1"


async def ends_it(box: PythonBox, code: str) -> SandboxTerminatedError:
    with anyio.fail_after(30), pytest.raises(SandboxTerminatedError) as error:
        await box.job(code)
    return error.value


async def test_a_job_that_kills_the_interpreter_ends_its_own_sandbox() -> None:
    async with python_box("local", Interpreter(PYTHON)) as box:
        kill = (
            "import os, time; os.kill(os.getppid(), 9); print('passed', flush=True); time.sleep(99)"
        )
        assert (await ends_it(box, kill)).by_command
        assert (await ends_it(box, "print(1)")).by_command
        left = await box.exec("sh", "-c", "cat /proc/[0-9]*/cmdline | tr '\\0' ' '")
        assert b"passed" not in left.stdout


async def test_an_interpreter_that_exits_by_itself_is_not_the_jobs_fault() -> None:
    """The interpreter may have lacked something that other sandboxes used up."""
    setup = "import posix; posix.fork = lambda: posix._exit(3)"
    async with python_box("local", Interpreter(PYTHON, setup=setup)) as box:
        for code in ("print(1)", "print(2)"):
            ended = await ends_it(box, code)
            assert not ended.by_command
            assert "by itself" in str(ended)


@pytest.mark.timeout(900)  # on a busy machine: these are many forks on one processor
def test_a_spare_fork_that_ends_while_it_is_dropped_ends_nothing_else() -> None:
    """On one processor, where its end comes between any two steps of who drops it."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    first = min(os.sched_getaffinity(0))

    def prepare() -> None:
        os.dup2(theirs.fileno(), 3)
        os.sched_setaffinity(0, {first})

    argv = [sys.executable, "-I", "-c", requests._server().decode(), "python3", *["0"] * 5]
    with (
        ours,
        subprocess.Popen(argv, stdin=subprocess.DEVNULL, close_fds=False, preexec_fn=prepare),
    ):
        theirs.close()
        ours.settimeout(60)
        modules = os.memfd_create("modules")
        os.write(modules, bytes(16))
        socket.send_fds(ours, [b"modules"], [modules])
        os.close(modules)
        assert ours.recv(100).startswith(b"ready ")
        for _ in range(4000):  # of as many it ended in two and more
            ours.send(b"spare")
            ours.send(b"drop")
            assert ours.recv(100) == b"dropped"
        ours.shutdown(socket.SHUT_RDWR)

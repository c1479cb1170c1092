"""The interpreter: its start, its jobs and their ends, as whom it runs, and what a job may do to it."""

import json
import os
import re
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
import pytest

from sandboxkit.errors import CommandStartError, ConfigurationError, SandboxTerminatedError
from sandboxkit.provider import Box, Provider
from sandboxkit.providers._agent import requests
from sandboxkit.providers.docker import DockerProvider
from sandboxkit.providers.local import LocalProvider
from sandboxkit.types import Command, Interpreter, PtySize, SandboxSpec, WholeInput
from tests.agent.conftest import PROGRAMS, Commands, Run, after
from tests.data_here import beside
from tests.docker_here import require_docker

pytestmark = pytest.mark.anyio

KINDS = ("local", "docker")  # one with one uid, and one with several
PYTHON = "python3"
PLAIN = Interpreter(PYTHON)
CAPABILITIES = ("CapPrm", "CapInh", "CapEff", "CapAmb")
SETUID_AND_SETGID = 1 << 7 | 1 << 6
FOUND = "import json; print(json.dumps(found))"
_ADDRESS = re.compile(rb"0x[0-9a-f]{6,}|(?<=started )\d+")


class PythonBox(Commands[Box]):
    """A sandbox of a real backend that has an interpreter."""

    async def job(self, code: str, *args: str, run: Run | None = None, **options: object) -> Run:
        run = run or Run()
        command = Command(("-c", *args), **options)  # type: ignore[arg-type]  # a shorthand
        run.exit = await self.inner.run_python(code, command, run.output)
        return run

    async def says(self, code: str) -> str:
        """Return what a job prints."""
        run = await self.job(code)
        assert (run.status, run.stderr) == (0, b""), run.stderr
        return run.stdout.decode().strip()

    async def both(self, code: str, *args: str, **options: Any) -> list[Run]:  # Any: as for job
        """The outcomes as a job and as a command."""
        job = await self.job(code, *args, **options)
        return [job, await self.exec(PYTHON, "-I", "-c", code, *args, **options)]


@asynccontextmanager
async def python_box(
    kind: str = "local", interpreter: Interpreter | None = PLAIN
) -> AsyncIterator[PythonBox]:
    """A new sandbox of that kind, whose interpreter runs; where it is None there is none."""
    image = require_docker() if kind == "docker" else None
    provider: Provider = DockerProvider() if kind == "docker" else LocalProvider()
    box = await provider.create(SandboxSpec(image=image, profile="strict"))
    try:
        if interpreter is not None:
            await box.start_interpreter(interpreter)
        yield PythonBox(box)
    finally:
        await box.delete()


@pytest.fixture
async def box(anyio_backend: str) -> AsyncIterator[PythonBox]:
    async with python_box() as box:
        yield box


def not_utf8(text: str) -> str:
    return text.encode("latin-1").decode(errors="surrogateescape")


def outcome(run: Run) -> tuple[object, ...]:
    """All that is compared; addresses differ."""
    streams = (_ADDRESS.sub(b"X", stream) for stream in (run.stdout, run.stderr))
    return (run.status, run.exit.ending, *streams)


@pytest.mark.timeout(900)  # on a busy machine: these are many programs
@pytest.mark.parametrize("kind", ["local", pytest.param("docker", marks=pytest.mark.nightly)])
async def test_a_job_ends_as_the_same_code_ends_in_a_fresh_python(kind: str) -> None:
    programs, differ = beside(__file__, "python_programs.toml"), {}
    assert len(programs) >= 40
    async with python_box(kind) as box:
        for name, given in programs.items():
            code, env = given["code"], given.get("env", {})
            if given.get("latin_1"):
                code, env = not_utf8(code), {each: not_utf8(env[each]) for each in env}
            options = {"env": env, "pty": PtySize() if "terminal" in given else None}
            if "stdin" in given:
                data = given["stdin"].encode("latin-1") * given.get("times", 1)
                options["stdin"] = WholeInput(data)
            with anyio.fail_after(60):
                runs = await box.both(code, *given.get("args", ()), **options)
            job, command = map(outcome, runs)
            if job != command:
                differ[name] = job, command
    assert differ == {}


@pytest.mark.parametrize("kind", KINDS)
async def test_the_document_lists_all_differences(kind: str) -> None:
    async with python_box(kind) as box:
        for name, code in PROGRAMS["differences"].items():
            job, command = await box.both(code, env={"MINE": "1"})
            assert (job.status, command.status) == (0, 0), job.stderr
            assert job.stdout != command.stdout, name
        seeds = {await box.says("print(hash('text'))") for _ in range(3)}
        random = {await box.says("import random; print(random.random())") for _ in range(3)}
    assert (len(seeds), len(random)) == (1, 3)


async def test_jobs_share_preloaded_modules_and_nothing_else() -> None:
    setup = "import json\njson.found = 'by the setup'"
    async with python_box("local", Interpreter(PYTHON, ("json", "numbers"), setup)) as box:
        code = "import sys, json; print('numbers' in sys.modules, json.found, 'setup' in dir())"
        assert await box.says(code) == "True by the setup False"
        assert await box.says("import sys; sys.mark = mark = 1; print(2)") == "2"
        look = "import sys; print(hasattr(sys, 'mark'), 'mark' in dir())"
        assert await box.says(look) == "False False"


@pytest.mark.parametrize("kind", KINDS)
async def test_a_cancelled_job_leaves_nothing_and_the_interpreter_lives(kind: str) -> None:
    async with python_box(kind) as box:
        assert (await box.sh("sleep 2001 > /dev/null &")).status == 0
        run = Run()
        async with anyio.create_task_group() as group:
            group.start_soon(lambda: box.job(PROGRAMS["tree"], run=run))
            await run.started.wait()
            group.cancel_scope.cancel()
        assert await box.says(PROGRAMS["processes"]) == "sleep 2001"


async def test_background_processes_of_a_job_live_on(box: PythonBox) -> None:
    await box.says("import os; os.system('sleep 1001 > /dev/null 2>&1 &')")
    assert "1001" in await box.says(PROGRAMS["processes"])


async def test_a_second_job_at_the_same_time_is_refused(box: PythonBox) -> None:
    refused, run = anyio.Event(), Run()
    async with anyio.create_task_group() as group:
        code = "print('up', flush=True); print(input())"
        group.start_soon(lambda: box.job(code, run=run, stdin=after(refused, b"go on\n")))
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
    async with python_box("local", None) as box:
        with pytest.raises(error, match=words):
            await box.inner.start_interpreter(interpreter)
        with pytest.raises(ConfigurationError, match="no interpreter"):
            await box.job("print(1)")
        assert (await box.exec("echo", "1")).stdout == b"1\n"


async def test_an_interpreter_starts_once_and_before_any_command(box: PythonBox) -> None:
    async with python_box("local", None) as after_a_command:
        await after_a_command.exec("true")
        for each in (box, after_a_command):
            with pytest.raises(CommandStartError, match="once, and before any command"):
                await each.inner.start_interpreter(Interpreter(PYTHON))
        assert await box.says("print(1)") == "1"


async def test_a_job_that_cannot_start_says_why(box: PythonBox) -> None:
    with pytest.raises(CommandStartError, match="/nowhere") as error:
        await box.job("print(1)", cwd="/nowhere")
    assert error.value.errno == 2
    with pytest.raises(CommandStartError, match="NUL"):
        await box.job("print(1)\0")
    assert await box.says("print(1)") == "1"


async def test_a_job_of_another_user_cannot_reach_the_interpreter_at_all() -> None:
    async with python_box("docker") as box:
        assert (await box.job(PROGRAMS["reach"], "signals")).stdout == b"[] []\n"
        with pytest.raises(CommandStartError, match="cannot become the user"):
            await box.job("print(1)", user="nobody")
        assert await box.says("print(1)") == "1"


async def test_a_job_of_the_same_user_cannot_look_into_the_interpreter(box: PythonBox) -> None:
    assert (await box.job(PROGRAMS["reach"])).stdout == b"[] []\n"
    stop = "import os, time; os.kill(os.getppid(), 19); time.sleep(0.1); print('on')"
    assert await box.says(stop) == "on"
    for number in (1, 2, 15, 17, 34):
        assert await box.says(f"import os; os.kill(os.getppid(), {number}); print(1)") == "1"


async def test_a_job_that_kills_the_interpreter_ends_its_own_sandbox(box: PythonBox) -> None:
    kill = "import os, time; os.kill(os.getppid(), 9); print('passed', flush=True); time.sleep(99)"
    for code in (kill, "print(1)"):
        with anyio.fail_after(30), pytest.raises(SandboxTerminatedError) as ended:
            await box.job(code)
        assert ended.value.by_command
    left = await box.sh("cat /proc/[0-9]*/cmdline | tr '\\0' ' '")
    assert b"passed" not in left.stdout


async def test_an_interpreter_that_exits_by_itself_is_not_the_jobs_fault() -> None:
    """The interpreter may have lacked something that other sandboxes used up."""
    setup = "import posix; posix.fork = lambda: posix._exit(3)"
    async with python_box("local", Interpreter(PYTHON, setup=setup)) as box:
        for code in ("print(1)", "print(2)"):
            ends = pytest.raises(SandboxTerminatedError, match="by itself")
            with anyio.fail_after(30), ends as ended:
                await box.job(code)
            assert not ended.value.by_command


@pytest.mark.timeout(900)  # on a busy machine: these are many forks on one processor
def test_a_spare_fork_that_ends_while_it_is_dropped_ends_nothing_else() -> None:
    """On one processor, where its end comes between any two steps of who drops it."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    first = min(os.sched_getaffinity(0))

    def prepare() -> None:
        os.dup2(theirs.fileno(), 3)
        os.sched_setaffinity(0, {first})

    argv = [sys.executable, "-I", "-c", requests._server().decode(), "python3", *["0"] * 5]
    pipes = {"stdin": subprocess.DEVNULL, "close_fds": False}
    with ours, subprocess.Popen(argv, preexec_fn=prepare, **pipes):  # type: ignore[call-overload]
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


# A setup runs before any job, and the interpreter is then a program of the image.
@pytest.mark.parametrize(("kind", "right"), [("local", 0), ("docker", SETUID_AND_SETGID)])
async def test_it_is_not_root_and_can_only_become_the_user_of_jobs(kind: str, right: int) -> None:
    async with python_box(kind, Interpreter(PYTHON, setup=PROGRAMS["status"])) as box:
        state = json.loads(await box.says(FOUND))
        job = json.loads(await box.says(PROGRAMS["status"] + FOUND))
    assert len(set(state["Uid"])) == 1
    assert right == 0 or not set(state["Uid"]) & {"0", *job["Uid"]}
    assert (state["Gid"], state["Groups"]) == (job["Gid"], job["Groups"])
    for name in CAPABILITIES:
        assert (int(state[name][0], 16), int(job[name][0], 16)) == (right, 0), name


@pytest.mark.parametrize("kind", KINDS)
async def test_it_becomes_no_user_that_jobs_do_not_have_and_signals_none(kind: str) -> None:
    setup = PROGRAMS["ids"] + (PROGRAMS["signal_to_the_agent"] if kind == "docker" else "")
    async with python_box(kind, Interpreter(PYTHON, setup=setup)) as box:
        assert json.loads(await box.says(FOUND)) == []


@pytest.mark.parametrize("root", [False, True])
async def test_a_job_may_change_its_ids_as_far_as_its_user_may(root: bool) -> None:
    own = "os.setuid(os.getuid()); os.setresgid(*[os.getgid()] * 3); os.setreuid(-1, -1)"
    other = "os.setgroups([7]); os.setgid(7); os.setuid(4321); assert os.getuid() == 4321"
    provider = DockerProvider(capabilities=("SETUID", "SETGID") if root else ())
    spec = SandboxSpec(image=require_docker(), user="root" if root else None)
    box = PythonBox(await provider.create(spec))
    try:
        await box.inner.start_interpreter(PLAIN)
        assert await box.says(f"import os; {other if root else own}; print('done')") == "done"
    finally:
        await box.inner.delete()

"""A job ends as the same code in a Python of its own: status, ending and streams."""

import re
from collections.abc import AsyncIterator
from typing import Any

import anyio
import pytest

from sandboxkit.types import Interpreter, PtySize
from tests.agent.conftest import Run
from tests.agent.python_boxes import KINDS, PYTHON, PythonBox, python_box
from tests.agent.python_programs import PROGRAMS, Program

pytestmark = pytest.mark.anyio

_ADDRESS = re.compile(rb"0x[0-9a-f]{6,}|(?<=started )\d+")


def outcome(run: Run) -> tuple[object, ...]:
    """All that is compared; addresses differ."""
    streams = (_ADDRESS.sub(b"X", stream) for stream in (run.stdout, run.stderr))
    return (run.status, run.exit.ending, *streams)


async def both(box: PythonBox, program: Program) -> tuple[Run, Run]:
    """The outcomes as a job and as a command."""

    async def stdin(data: bytes) -> AsyncIterator[bytes]:
        yield data

    def options() -> dict[str, Any]:  # of a `Command`
        return {
            "env": program.env,
            "stdin": None if program.stdin is None else stdin(program.stdin),
            "pty": PtySize() if program.terminal else None,
        }

    job = await box.job(program.code, *program.args, **options())
    command = await box.exec(PYTHON, "-I", "-c", program.code, *program.args, **options())
    return job, command


@pytest.mark.timeout(900)  # on a busy machine: these are many programs
@pytest.mark.parametrize("kind", ["local", pytest.param("docker", marks=pytest.mark.nightly)])
async def test_a_job_ends_as_the_same_code_ends_in_a_fresh_python(kind: str) -> None:
    assert len(PROGRAMS) >= 40
    differ = {}
    async with python_box(kind, Interpreter(PYTHON)) as box:
        for name, program in PROGRAMS.items():
            with anyio.fail_after(60):
                job, command = await both(box, program)
            if outcome(job) != outcome(command):
                differ[name] = outcome(job), outcome(command)
    assert differ == {}


DIFFERENCES = {
    "the hash seed": "print(hash('text'))",
    "the parent": "import os; print(open(f'/proc/{os.getppid()}/comm').read())",
    "the command line in /proc": "print(open('/proc/self/cmdline').read())",
    "the environment in /proc": "print('MINE' in open('/proc/self/environ').read())",
    "the frame below": "import sys; print(sys._getframe().f_back)",
    "the depth of the stack": "def f(n):\n try: return f(n + 1)\n except RecursionError: return n\nprint(f(0))",
    "what is frozen": "import gc; print(gc.get_freeze_count())",
}


@pytest.mark.parametrize("kind", KINDS)
async def test_the_document_lists_all_differences(kind: str) -> None:
    async with python_box(kind, Interpreter(PYTHON)) as box:
        for name, code in DIFFERENCES.items():
            job, command = await both(box, Program(code, env={"MINE": "1"}))
            assert (job.status, command.status) == (0, 0), job.stderr
            assert job.stdout != command.stdout, name
        seeds = {await box.says("print(hash('text'))") for _ in range(3)}
        random = {await box.says("import random; print(random.random())") for _ in range(3)}
    assert len(seeds) == 1
    assert len(random) == 3


async def test_jobs_share_preloaded_modules_and_nothing_else() -> None:
    setup = "import json\njson.found = 'by the setup'"
    async with python_box("local", Interpreter(PYTHON, ("json", "numbers"), setup)) as box:
        code = "import sys, json; print('numbers' in sys.modules, json.found, 'setup' in dir())"
        assert await box.says(code) == "True by the setup False"
        assert await box.says("import sys; sys.mark = mark = 1; print(2)") == "2"
        assert await box.says("import sys; print(hasattr(sys, 'mark'), 'mark' in dir())") == (
            "False False"
        )

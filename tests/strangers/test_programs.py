"""Ordinary programs print what they print on any machine: in every kind of sandbox, one sandbox of each kind."""

import functools

import pytest

from sandboxkit import Ending, ProcessResult, SandboxTerminatedError, Session
from sandboxkit.testing.conformance._base import DEADLINE
from tests.data_here import beside
from tests.docker_here import require_docker
from tests.local_here import require_local

GIVEN = beside(__file__, "programs.toml")
PROGRAMS = GIVEN["programs"]


@functools.cache
def results(kind: str) -> dict[str, ProcessResult]:
    """Run all programs in one sandbox of a kind, at the same time."""
    options = GIVEN["kinds"][kind]
    require_docker() if options["provider"] == "docker" else require_local()
    with Session(**options) as session, session.sandbox() as box:
        begun = {name: box.exec(["python3", "-c", each["code"]]) for name, each in PROGRAMS.items()}
        return {name: process.result(DEADLINE) for name, process in begun.items()}


@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("kind", GIVEN["kinds"])
def test_an_ordinary_program_runs_as_on_any_machine(kind: str, name: str) -> None:
    result = results(kind)[name]
    assert (result.stdout, result.stderr, result.returncode) == (PROGRAMS[name]["out"], "", 0)


@pytest.mark.parametrize("kind", GIVEN["kinds"])
def test_a_program_that_fills_shared_memory_is_out_of_memory(kind: str) -> None:
    with Session(**GIVEN["kinds"][kind], memory_mb=64) as session:
        try:
            result = session.run(["sh", "-c", "cat /dev/zero >/dev/shm/full"]).result(DEADLINE)
            told = bool(result.usage.oom_kills) or result.ending is Ending.OUT_OF_MEMORY
        except SandboxTerminatedError as error:
            told = error.out_of_memory
    assert told

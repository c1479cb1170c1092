"""What a job has that is its own: a user, a terminal, files from outside, a folder."""

from contextlib import closing

import pytest

from sandboxkit import Operation, PtySize, SandboxFileNotFoundError
from sandboxkit.errors import SandboxNotCleanError
from sandboxkit.types import Command
from tests.reset.conftest import ready
from tests.reset.jobs import DEADLINE, PROGRAMS, Job, Target, wait

_TERMINAL = "import termios; a = termios.tcgetattr(0); print(repr(a)); "
_RAW = "import tty; tty.setraw(0); a[3] = 0; termios.tcsetattr(0, 0, a)"


def test_no_two_jobs_are_the_same_user(target: Target) -> None:
    """Where a sandbox has several; else it is the only one."""
    seen = [target.user() for _ in range(4)]
    numbers = {number for each in seen for number in each}
    assert 0 not in numbers
    if target.name == "docker":
        assert len({each[0] for each in seen}) == len({each[1] for each in seen}) == 4
        assert not numbers & {65534}


def test_a_job_gets_a_new_terminal(commands: Target) -> None:
    output = []
    for then in (_RAW, ""):
        job = Job()
        command = Command(("python3", "-c", _TERMINAL + then), pty=PtySize(24, 80))
        work = commands.sandbox().exec(command, job.output)
        assert Operation(work).result(DEADLINE).status == 0, job.stdout
        output.append(job.stdout)
        assert commands.reset() == "clean"
    assert output[0] == output[1]


def test_uploaded_files_are_removed(target: Target) -> None:
    paths = ("/workspace/given", "/workspace/folder/given", "/tmp/given")
    for _ in range(2):
        for path in paths:
            with pytest.raises(SandboxFileNotFoundError):
                wait(target.sandbox().read_file(path, max_bytes=100))
            wait(target.sandbox().write_file(path, b"data", mode=0o400))
            assert wait(target.sandbox().read_file(path, max_bytes=100)) == b"data"
        job = target.run(target.sandbox(), "print(open('given').read()); open('made', 'w')")
        assert (job.status, job.stdout) == (0, b"data\n"), job.stderr
        assert target.reset() == "clean"


def test_a_sandbox_without_reuse_is_never_clean() -> None:
    refused = pytest.raises(SandboxNotCleanError, match="not made for being reset")
    with closing(Target("local", "exec", reuse="never")) as target, refused:
        target.sandbox()


@pytest.mark.parametrize("name", ["local", "docker"])
def test_a_workdir_elsewhere_is_restored(name: str) -> None:
    """On local nothing is mounted there, so that a job can take it away."""
    workdir = "/tmp/job/here"
    try:
        target = ready(name, "exec", workdir)
    except SandboxNotCleanError as error:
        pytest.skip(f"such a sandbox cannot be reset: {error}")
    with closing(target):
        fresh = target.run(target.sandbox(), PROGRAMS["look"])
        assert fresh.status == 0, fresh.stderr
        assert target.reset() == "clean"
        for change, code in PROGRAMS["workdirs"].items():
            job = target.run(target.sandbox(), code.replace("W", repr(workdir)))
            # On docker it is a mount after all, so that most of these are refused.
            assert job.status == 0 or name == "docker", (change, job.stderr)
            assert target.reset() == "clean", change
            after = target.run(target.sandbox(), PROGRAMS["look"])
            assert (after.status, after.stdout) == (0, fresh.stdout), (change, after.stderr)
            assert target.reset() == "clean", change
        assert target.made == 1

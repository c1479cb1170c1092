"""Commands that cannot be started: an error that says why, and never a status."""

import errno
from collections import Counter
from pathlib import Path

import anyio
import pytest

from sandboxkit.errors import CommandStartError, ConfigurationError, SandboxStartError
from sandboxkit.types import Ending, PtySize, SandboxSpec
from tests.agent.conftest import Box, NamespaceProvider, Run

pytestmark = pytest.mark.anyio


async def refused(box: Box, *argv: str, **options: object) -> CommandStartError:
    run = Run()
    with pytest.raises(CommandStartError) as raised:
        await box.exec(*argv, run=run, **options)
    assert (run.stdout, run.stderr) == (b"", b"")
    assert "\n" not in str(raised.value)
    return raised.value


async def test_a_missing_program_is_named_with_the_path_that_was_searched(box: Box) -> None:
    error = await refused(box, "no-such-program", env={"PATH": "/here:/there"})
    assert (error.errno, error.retryable) == (errno.ENOENT, False)
    assert str(error) == 'no program "no-such-program" in PATH, which is /here:/there'
    error = await refused(box, "./no-such-program")
    assert str(error) == "cannot execute ./no-such-program: no such file or directory"
    assert (await refused(box, "")).errno == errno.ENOENT


@pytest.mark.parametrize("program", ["/etc/passwd", "/etc"])
async def test_a_file_that_is_not_executable_is_named(box: Box, program: str) -> None:
    error = await refused(box, program)
    assert error.errno == errno.EACCES
    assert str(error) == f"cannot execute {program}: permission denied"


async def test_a_file_that_is_not_a_program_is_named(box: Box) -> None:
    await box.sh(
        "echo hello > text; printf '#!/no/such/interpreter\\n' > script; chmod +x text script"
    )
    error = await refused(box, f"{box.workdir}/text")
    assert error.errno == errno.ENOEXEC
    assert "cannot execute" in str(error)
    assert "nor a script whose first line names" in str(error)
    error = await refused(box, f"{box.workdir}/script")
    assert error.errno == errno.ENOENT
    assert "the interpreter that it names is not there" in str(error)


async def test_a_cwd_that_cannot_be_entered_is_named(box: Box) -> None:
    error = await refused(box, "true", cwd="/no/such/folder")
    assert error.errno == errno.ENOENT
    assert str(error) == "cannot enter /no/such/folder: no such file or directory"
    assert (await refused(box, "true", cwd="/etc/passwd")).errno == errno.ENOTDIR


async def test_a_cwd_that_the_user_may_not_enter_is_named(user_box: Box) -> None:
    folder = f"{user_box.provider.folder}/root-only"
    await user_box.exec("mkdir", "-m", "700", folder, user="root")
    error = await refused(user_box, "true", cwd=folder)
    assert error.errno == errno.EACCES


async def test_arguments_that_are_too_long_say_what_to_do(box: Box) -> None:
    error = await refused(box, "true", "x" * (1 << 20))
    assert (error.errno, error.retryable) == (errno.E2BIG, False)
    assert "stdin" in str(error)
    error = await refused(box, "true", "x" * (5 << 20))
    assert error.errno == errno.E2BIG
    assert (await box.exec("true")).status == 0


async def test_a_start_that_fails_on_a_terminal_leaves_nothing(box: Box) -> None:
    before = await descriptors(box)
    for _ in range(20):
        await refused(box, "/etc/passwd", pty=PtySize())
        await refused(box, "true", cwd="/no/such/folder")
    with anyio.fail_after(60):  # some are closed after the answer
        while await descriptors(box) > before + 2:
            await anyio.sleep(0.01)


async def descriptors(box: Box) -> int:
    """How many files the agent has open."""
    process = box.provider.processes[box.id]
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    return len(list(Path(f"/proc/{children[0]}/fd").iterdir()))


async def test_each_of_many_commands_runs_or_is_refused(box: Box) -> None:
    outcomes: Counter[object] = Counter()

    async def one() -> None:
        try:
            run = await box.exec("true")
        except CommandStartError as error:
            outcomes[error.errno, error.retryable] += 1
        else:
            outcomes[run.status, run.exit.ending] += 1

    async with anyio.create_task_group() as group:
        for _ in range(300):
            group.start_soon(one)
    assert sum(outcomes.values()) == 300
    no_room = {(number, True) for number in (errno.EAGAIN, errno.ENOMEM, errno.EMFILE)}
    assert set(outcomes) <= {(0, Ending.EXITED), *no_room}


async def test_a_user_that_does_not_exist_is_the_callers_mistake(box: Box) -> None:
    with pytest.raises(ConfigurationError, match='no user "nosuchuser"'):
        await box.exec("true", user="nosuchuser")
    with pytest.raises(ConfigurationError, match="no group"):
        await box.exec("true", user="12345:nosuchgroup")


async def test_a_main_command_that_cannot_be_started_fails_the_start(
    provider: NamespaceProvider,
) -> None:
    workdir = str(provider.folder / "work")
    for command, why in ((("no-such-program",), "no program"), (("/etc/passwd",), "permission")):
        with pytest.raises(SandboxStartError, match=f"main command was not started: .*{why}"):
            await provider.create(SandboxSpec(workdir=workdir, command=command))

"""A failure that nobody asks for is logged when its operation is collected."""

import gc
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import anyio
import pytest

from sandboxkit import Operation, Process, Session, wait
from sandboxkit.testing import FakeProvider
from tests.core.test_operation import fail

FAILS = ["sh", "-c", "exit 3"]
Logged = Callable[..., list[str]]


@pytest.fixture
def session() -> Iterator[Session]:
    with Session(FakeProvider()) as session:
        yield session


@pytest.fixture
def logged(caplog: pytest.LogCaptureFixture) -> Logged:
    gc.collect()  # what the tests before have left
    caplog.clear()

    def collect(expected: int = 0) -> list[str]:
        deadline = time.monotonic() + 60
        while True:
            for _ in range(3):
                Operation(anyio.sleep(0.02)).result()  # by then the loop has let go of what ended
                gc.collect()
            found = [each.getMessage() for each in caplog.records if each.name == "sandboxkit"]
            if len(found) >= expected or time.monotonic() > deadline:
                return found

    return collect


NEVER = "; this result was never collected: call result() or await it"


def test_an_unread_status_and_an_unread_error_are_logged(session: Session, logged: Logged) -> None:
    wait([session.run(FAILS)])
    assert logged(1) == [f"'sh -c exit 3' exited with status 3{NEVER}"]
    wait([Operation(fail())])
    assert logged(2)[1:] == [f"LookupError: lost{NEVER}"]


async def _await(process: Process) -> None:
    await process


@pytest.mark.parametrize(
    "ask",
    [
        lambda process: process.result(60),
        lambda process: process.exception(60),
        lambda process: (wait([process]), process.returncode),
        lambda process: (wait([process]), process.poll()),
        lambda process: Operation(_await(process)).result(60),
    ],
    ids=["result", "exception", "returncode", "poll", "await"],
)
def test_asking_for_a_result_counts_as_reading_it(
    session: Session, logged: Logged, ask: Callable[[Process], None]
) -> None:
    ask(session.run(FAILS))
    assert logged() == []


def test_success_kill_cancel_and_stop_are_not_logged(session: Session, logged: Logged) -> None:
    wait([session.run(["true"])])
    killed, cancelled = session.run(["sleep", "100"]), session.run(["sleep", "100"])
    killed.kill()
    cancelled.cancel()
    sandbox = session.sandbox()
    running = sandbox.exec(["sh", "-c", "echo up; exec sleep 100"])
    next(iter(running.stdout))
    sandbox.stop().result(60)
    wait([killed, cancelled, running], num_returns=3)
    del killed, cancelled, running
    assert logged() == []


def test_commands_ended_by_close_are_not_logged(logged: Logged) -> None:
    session = Session(FakeProvider())
    # Any: the one results in a ProcessResult, the other in bytes.
    pending: list[Operation[Any]] = [session.run(["true"]), session.sandbox().read_file("/x")]
    session.close()
    wait(pending, num_returns=2)
    session.close().result(60)
    del pending
    assert [each for each in logged() if "is closed" in each or "stopped" in each] == []


def test_a_forked_child_does_not_log_its_parents_results(session: Session, logged: Logged) -> None:
    dropped = session.run(FAILS)
    wait([dropped])
    if (pid := os.fork()) == 0:
        del dropped
        os._exit(len(logged()))
    assert os.waitpid(pid, 0)[1] == 0


def test_a_program_without_logging_of_its_own_shows_it() -> None:
    code = (
        "from sandboxkit import Session, wait\nfrom sandboxkit.testing import FakeProvider\n"
        f"with Session(FakeProvider()) as session: wait([session.run({FAILS})])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0
    assert done.stderr.startswith(f"'sh -c exit 3' exited with status 3{NEVER[:34]}")


def test_calls_that_the_end_of_a_block_cancels_are_named(logged: Logged) -> None:
    with Session(FakeProvider()) as session:
        sandbox = session.sandbox()
        sandbox.write_file("/workspace/a", "1")
        sandbox.exec(["true"])
    (message,) = logged(1)
    assert {"write_file('/workspace/a')", "Process 'true'"} <= {*re.split(", |before ", message)}


def test_what_runs_until_the_end_of_a_block_is_not_named(logged: Logged) -> None:
    with Session(FakeProvider()) as session, session.sandbox() as sandbox:
        server = sandbox.exec(["sh", "-c", "echo ready; sleep 60"])
        next(iter(server.stdout))
    assert logged() == []


def test_live_output_that_is_printed_warns(session: Session) -> None:
    with pytest.warns(RuntimeWarning, match=r"take all of it from result\(\)\.stdout"):
        assert "live output" in str(session.run(["true"]).stdout)

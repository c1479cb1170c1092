"""A parent's objects in a forked child: each call returns or raises at once, and harms nothing."""

import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sandboxkit import ConfigurationError, Session
from sandboxkit.provider import close_in_forks
from sandboxkit.testing import FakeProvider
from tests.docker_here import require_docker

# The child's verdict is its exit status; faulthandler shows where one hangs.
PRELUDE = """
import asyncio, faulthandler, gc, os, signal, socket, sys, threading, time
import pytest
from sandboxkit import ConfigurationError, Operation, Sandbox, Session, as_completed, wait
from sandboxkit.testing import FakeProvider
from sandboxkit.types import PtySize
faulthandler.dump_traceback_later(150, exit=True)

class Counting(FakeProvider):
    deleted = 0
    async def delete(self, sandbox_id):
        self.deleted += 1
        await super().delete(sandbox_id)

def refused(call):
    with pytest.raises(ConfigurationError, match="belongs to process"):
        result = call()
        if isinstance(result, Operation):
            result.result(60)

provider = Counting()
session = Session(provider)
sandbox = session.sandbox().start().result(60)
"""
FORK = """
pid = os.fork()
if pid == 0:
    code = 1
    try:
        child()
        code = 0
    except BaseException:
        import traceback
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)
_, status = os.waitpid(pid, 0)
assert status == 0, status
assert provider.deleted == 0
assert sandbox.exec(["echo", "well"]).result(60).stdout == "well\\n"
after = globals().get("after")
if after:
    after()
session.close().result(60)
"""


def check(body: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", PRELUDE + body + FORK],
        capture_output=True,
        text=True,
        timeout=160,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_a_call_on_a_parents_object_names_the_parent(tmp_path: Path) -> None:
    check(
        """
fresh, terminal = session.sandbox(), sandbox.terminal().start().result(60)
kernel = sandbox.python()

def child():
    refused(lambda: sandbox.exec(["true"]))
    refused(lambda: sandbox.terminal())
    refused(lambda: terminal.run("true"))
    refused(lambda: terminal.wait())
    refused(lambda: terminal.read())
    refused(lambda: terminal.__enter__())
    refused(lambda: kernel.run("1"))
    refused(lambda: kernel.interrupt())
    refused(lambda: kernel.restart())
    refused(lambda: sandbox.read_file("/tmp/x"))
    refused(lambda: sandbox.write_file("/tmp/x", b""))
    refused(lambda: sandbox.upload("/etc/hostname", "/tmp/x"))
    refused(lambda: sandbox.download("/tmp/x", "/tmp/x"))
    refused(lambda: sandbox.list_dir("/tmp"))
    refused(lambda: sandbox.stat("/tmp"))
    refused(lambda: sandbox.remove("/tmp/x"))
    refused(lambda: sandbox.logs())
    refused(lambda: sandbox.status())
    refused(lambda: sandbox.usage())
    refused(lambda: sandbox.wait())
    refused(lambda: sandbox.renew(5))
    refused(lambda: sandbox.start())
    refused(lambda: fresh.start())
    refused(lambda: fresh.exec(["true"]))
    refused(lambda: sandbox.__enter__())
    refused(lambda: asyncio.run(sandbox.__aenter__()))
    refused(lambda: session.sandbox())
    refused(lambda: session.run(["true"]))
    refused(lambda: session.list())
    refused(lambda: session.diagnose())
    refused(lambda: session.from_id(sandbox.id))
    refused(lambda: session.adopt(sandbox))
    refused(lambda: Session(provider))
""",
        tmp_path,
    )


def test_ending_a_parents_sandbox_and_session_in_a_child_does_nothing(tmp_path: Path) -> None:
    check(
        """
fresh, terminal = session.sandbox(), sandbox.terminal().start().result(60)
kernel = sandbox.python(ipykernel=False).start().result(60)
starting = sandbox.terminal()
operation = starting.start()

def child():
    for each in (terminal, kernel, starting):
        each.close().result(60)
        each.__exit__(None, None, None)
        asyncio.run(each.__aexit__(None, None, None))
    for each in (sandbox, fresh):
        each.stop().result(60)
        each.__exit__(None, None, None)
        asyncio.run(each.__aexit__(None, None, None))
    session.close().result(60)
    session.__exit__(None, None, None)
    asyncio.run(session.__aexit__(None, None, None))

def after():
    operation.result(60)
    for each in (terminal, starting):
        assert each.run("echo well").result(60).output == "well\\n"
    assert kernel.run("1 + 1").result(60).text == "2"
""",
        tmp_path,
    )


def test_unfinished_work_of_a_parent_raises_and_finished_work_keeps_its_result(
    tmp_path: Path,
) -> None:
    check(
        """
done = sandbox.exec(["echo", "done"])
assert done.result(60).stdout == "done\\n"
failed = sandbox.read_file("/tmp/nosuch")
assert failed.exception(60) is not None
running = sandbox.exec(["sh", "-c", "echo up; exec cat"], stdin=True)
assert next(iter(running.stdout)) == "up\\n"
called = []
told = threading.Event()
running.add_done_callback(called.append)
running.add_done_callback(lambda _: told.set())

async def wait_for(op):
    return await op

def child():
    assert done.result(60).stdout == asyncio.run(wait_for(done)).stdout == "done\\n"
    assert list(done.stdout) == ["done\\n"]
    assert isinstance(failed.exception(60), FileNotFoundError)
    refused(running.result)
    refused(lambda: asyncio.run(wait_for(running)))
    assert isinstance(running.exception(60), ConfigurationError)
    assert wait([running, done], num_returns=2, timeout=60) == ([running, done], [])
    assert set(as_completed([running, done], timeout=60)) == {running, done}
    assert running.done() and not running.running() and not running.cancelled()
    refused(running.poll)
    running.kill()
    running.cancel()
    refused(lambda: list(running.stdout))
    refused(lambda: list(running.stderr.lines()))
    refused(lambda: running.stdin.write(b"x"))
    refused(lambda: running.stdin.resize(PtySize(1, 1)))
    refused(lambda: running.stdin.close())
    assert called == []

def after():
    running.stdin.write(b"still").result(60)
    running.stdin.close().result(60)
    assert running.result(60).stdout == "up\\nstill"
    assert told.wait(60)
    assert called == [running]
""",
        tmp_path,
    )


def test_a_fork_while_threads_hold_an_operations_lock_does_not_hang(tmp_path: Path) -> None:
    check(
        """
running = sandbox.exec(["cat"], stdin=True)
running.stdin.write("x").result(60)
assert next(iter(running.stdout)) == "x"  # the parent's loop does not need the lock any more
held, go = threading.Event(), threading.Event()

def hold():
    with running._condition:
        held.set()
        go.wait()

threading.Thread(target=hold).start()
held.wait()

def child():
    refused(running.result)

def after():
    go.set()
    running.kill()
""",
        tmp_path,
    )


def test_a_child_works_with_a_session_of_its_own(tmp_path: Path) -> None:
    check(
        """
def child():
    with Session(FakeProvider()) as own, own.sandbox() as mine:
        assert mine.exec(["echo", "mine"]).result(60).stdout == "mine\\n"
    grandchild = os.fork()
    if grandchild == 0:
        refused(lambda: own.sandbox())
        refused(lambda: session.sandbox())
        with Session(FakeProvider()) as own, own.sandbox() as mine:
            mine.exec(["true"]).result(60)
        os._exit(0)
    assert os.waitpid(grandchild, 0)[1] == 0
""",
        tmp_path,
    )


def test_collecting_the_parents_work_in_a_child_runs_none_of_it(tmp_path: Path) -> None:
    """A `finally` of the parent's, run in the child, would kill or delete what is the parent's."""
    check(
        """
import anyio
ran = []

async def held():
    try:
        await anyio.Event().wait()
    finally:
        ran.append(os.getpid())

async def here():
    pass

operation = Operation(held())
Operation(here()).result(60)

def child():
    global operation, sandbox, session, provider
    del operation, sandbox, session, provider
    gc.collect()
    assert ran == []

def after():
    operation.cancel()
    Operation(here()).result(60)
""",
        tmp_path,
    )


def test_a_child_holds_none_of_the_loops_descriptors(tmp_path: Path) -> None:
    check(
        """
def opened():
    found = set()
    for number in os.listdir("/proc/self/fd"):
        try:
            found.add(os.readlink(f"/proc/self/fd/{number}"))
        except FileNotFoundError:
            pass
    return {each for each in found if "socket" in each or "eventpoll" in each}

before = opened()
assert before

def child():
    assert opened() == set()
""",
        tmp_path,
    )


def forked(call: "object") -> int:
    """The exit status of a child that says whether `call` is true there."""
    assert callable(call)
    pid = os.fork()
    if pid == 0:
        os._exit(0 if call() else 1)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_close_in_forks_closes_the_childs_copy_alone() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        close_in_forks(ours)
        close_in_forks(ours)
        held = ours.makefile("rb")
        assert forked(lambda: ours.fileno() == -1) == 0
        theirs.sendall(b"x\n")
        assert held.readline() == b"x\n"
        held.close()


def test_a_reused_descriptor_number_stays_open_in_the_child() -> None:
    ours, theirs = socket.socketpair()
    close_in_forks(ours)
    number = ours.fileno()

    def child() -> bool:
        nonlocal ours
        again = os.open("/dev/null", os.O_RDONLY)
        while again < number:
            again = os.open("/dev/null", os.O_RDONLY)
        del ours
        return again == number and os.fstat(number) is not None

    assert forked(child) == 0
    ours.close()
    theirs.close()


def test_a_socket_that_was_closed_before_the_fork_does_no_harm() -> None:
    ours, theirs = socket.socketpair()
    close_in_forks(ours)
    ours.close()
    theirs.close()
    assert forked(lambda: True) == 0


def test_a_child_of_the_loops_own_thread_is_refused_as_well() -> None:
    with Session(FakeProvider()) as session, session.sandbox() as sandbox:

        def child() -> bool:
            try:
                sandbox.exec(["true"])
            except ConfigurationError:
                return True
            return False

        assert forked(child) == 0
        assert sandbox.exec(["true"]).result(60).returncode == 0


LIVES_ON = """
import os, sys, time
from sandboxkit import Session
session = Session(sys.argv[1])
sandbox = session.sandbox().start().result(60)
sandbox.exec(["true"]).result(60)
if os.fork() == 0:
    time.sleep(600)
print(sandbox.id, flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("provider", ["local", "docker"])
def test_a_childs_life_does_not_keep_a_killed_parents_sandbox(provider: str) -> None:
    if provider == "docker":
        require_docker()
    with subprocess.Popen(
        [sys.executable, "-c", LIVES_ON, provider],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as parent:
        try:
            assert parent.stdout is not None
            sandbox_id = parent.stdout.readline().strip()
            assert sandbox_id
            parent.kill()
            deadline = time.monotonic() + 120  # the child lives for ten minutes
            with Session(provider) as session:
                while any(info.id == sandbox_id for info in session.list().result(30)):
                    assert time.monotonic() < deadline, "the sandbox lives on"
                    time.sleep(0.2)
        finally:
            os.killpg(parent.pid, signal.SIGKILL)

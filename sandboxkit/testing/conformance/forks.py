"""Tests that a forked child is refused the use of its parent's objects."""

import os
import select
import signal
import time
import warnings
from collections.abc import Callable
from typing import NoReturn

from sandboxkit import Sandbox, SandboxError, Session
from sandboxkit.testing.conformance._base import DEADLINE, Conformance, mine

_AT_ONCE = 5.0
"""Seconds within which each call in the child must return or be refused."""


def in_child(calls: dict[str, Callable[[], object]]) -> dict[str, str]:
    """Make the calls in a forked child; return the outcome of each by its name.

    Outcomes are "nothing" (it returned), "refused", the repr of another error, "hangs" and "dies"; no
    call follows one of the last two.
    """
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        # Python warns about a fork with threads, but these tests need one.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if not child:
        _report(writing, calls)
    os.close(writing)
    outcomes = b""
    poll = select.poll()
    poll.register(reading, select.POLLIN)
    try:
        while outcomes.count(b"\n") < len(calls):
            ready = poll.poll(_AT_ONCE * 1000)
            more = os.read(reading, 1 << 16) if ready else b"hangs\n"
            outcomes += more or b"dies\n"
            if not (ready and more):
                break
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(reading)
    return dict(zip(calls, outcomes.decode().splitlines(), strict=False))


def _report(writing: int, calls: dict[str, Callable[[], object]]) -> NoReturn:
    """Run the calls in the child and write their outcomes to `writing`; exit without clean-up."""
    try:
        for call in calls.values():
            try:
                call()
                outcome = "nothing"
            except SandboxError:
                outcome = "refused"
            except BaseException as error:  # noqa: BLE001 - reported to the parent
                outcome = repr(error).replace("\n", " ")
            os.write(writing, f"{outcome}\n".encode())
    finally:
        os._exit(0)


class ForksConformance(Conformance):
    """`os.fork()` without an exec, as in data loaders and launchers."""

    def test_a_forked_child_is_refused_at_once(self, sandbox: Sandbox) -> None:
        sandbox.write_file("/workspace/file", "parent's").result(DEADLINE)
        outcomes = in_child(
            {
                "exec": lambda: sandbox.exec(["touch", "/workspace/by-the-child"]).result(60),
                "read_file": lambda: sandbox.read_file("/workspace/file").result(60),
                "write_file": lambda: sandbox.write_file("/workspace/file", "no").result(60),
                "status": lambda: sandbox.status().result(60),
            }
        )
        assert outcomes == dict.fromkeys(outcomes, "refused"), outcomes
        assert sandbox.read_file("/workspace/file").result(DEADLINE) == b"parent's"
        listed = [info.path for info in sandbox.list_dir("/workspace").result(DEADLINE)]
        assert "/workspace/by-the-child" not in listed

    def test_a_forked_child_ends_nothing(self, session: Session, sandbox: Sandbox) -> None:
        running = sandbox.exec(["cat"], stdin=True)
        running.stdin.write(b"before ").result(DEADLINE)
        outcomes = in_child(
            {
                "kill": running.kill,
                "stop": lambda: sandbox.stop().result(60),
                "close": lambda: session.close().result(60),
                "exit": lambda: sandbox.__exit__(None, None, None),
            }
        )
        assert set(outcomes.values()) <= {"refused", "nothing"}, outcomes
        assert [info.id for info in mine(session)] == [sandbox.id]
        running.stdin.write(b"after").result(DEADLINE)
        running.stdin.close()
        assert running.result(DEADLINE).stdout == "before after"

    def test_children_come_and_go_beside_a_command(self, sandbox: Sandbox) -> None:
        process = sandbox.exec(["sh", "-c", "for i in 1 2 3 4 5 6; do echo $i; sleep 0.1; done"])
        began = time.monotonic()
        while not process.done() and time.monotonic() - began < DEADLINE:
            assert in_child({"id": lambda: sandbox.id}) == {"id": "nothing"}
        assert process.result(DEADLINE).stdout.split() == list("123456")
        assert sandbox.exec(["echo", "fine"]).result(DEADLINE).stdout == "fine\n"

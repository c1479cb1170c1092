"""What happens to sandboxes at interpreter exit, on signals, after a fork, and in a sweep."""

import asyncio
import datetime
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from sandboxkit import ConfigurationError, SandboxInfo, SandboxState, Session, _cleanup, _tags
from sandboxkit.testing import FakeProvider

# Each deletion leaves a file behind, so that another process can count them.
PRELUDE = """
import os, signal, sys, threading, asyncio
from pathlib import Path
from sandboxkit import Session
from sandboxkit.testing import FakeProvider

folder = Path(sys.argv[1])

class Counting(FakeProvider):
    async def delete(self, sandbox_id):
        await super().delete(sandbox_id)
        (folder / sandbox_id).touch()

class Stuck(FakeProvider):
    async def delete(self, sandbox_id):
        print("stopping", flush=True)
        await asyncio.Event().wait()
"""


def run_script(folder: Path, body: str) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", PRELUDE + body, str(folder)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(folder)},  # what one test abandons is pytest's to remove
    )


def test_a_session_left_open_is_closed_at_exit(tmp_path: Path) -> None:
    process = run_script(tmp_path, "s = Session(Counting()); s.sandbox().start().result(5)")
    _, errors = process.communicate(timeout=30)
    assert (process.returncode, errors) == (0, "")
    assert len(list(tmp_path.glob("fake-*"))) == 1


def test_an_error_in_the_program_still_cleans_up(tmp_path: Path) -> None:
    process = run_script(tmp_path, "s = Session(Counting()); s.sandbox().start().result(5); 1 / 0")
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 1
    assert "ZeroDivisionError" in errors
    assert len(list(tmp_path.glob("fake-*"))) == 1


@pytest.mark.parametrize(("busy", "said"), [(0.3, "ended\n"), (1000, "")])
def test_threads_of_extension_modules_may_end_first(tmp_path: Path, busy: float, said: str) -> None:
    """They crash an interpreter that ends meanwhile; one that stays does not hold it up."""
    process = run_script(
        tmp_path,
        f"""
import _thread, time      # a thread that Python does not know of, as those of extensions

def answer():
    time.sleep({busy})
    os.write(1, b"ended\\n")

with Session(Counting()) as s:
    s.sandbox().start().result(5)
    _thread.start_new_thread(answer, ())
""",
    )
    output, errors = process.communicate(timeout=30)
    assert (process.returncode, output, errors) == (0, said, "")


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_one_signal_cleans_up_and_ends_the_program(tmp_path: Path, signum: signal.Signals) -> None:
    process = run_script(
        tmp_path,
        """
with Session(Counting()) as s:
    s.sandbox().start().result(5)
    print("ready", flush=True)
    threading.Event().wait()
""",
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signum)
    process.communicate(timeout=30)
    assert process.returncode in (-signum, 128 + signum)
    assert len(list(tmp_path.glob("fake-*"))) == 1


def test_a_second_ctrl_c_exits_at_once(tmp_path: Path) -> None:
    process = run_script(
        tmp_path,
        """
with Session(Stuck()) as s:
    s.sandbox().start().result(5)
    print("ready", flush=True)
    threading.Event().wait()
""",
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGINT)
    assert process.stdout.readline() == "stopping\n"
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=10)
    assert process.returncode == -signal.SIGINT


def test_a_forked_child_neither_hangs_nor_stops_the_parents_sandboxes(tmp_path: Path) -> None:
    process = run_script(
        tmp_path,
        """
s = Session(Counting())
s.sandbox().start().result(5)
pid = os.fork()
if pid == 0:
    s.close().result(5)
    sys.exit(0)          # runs the child's exit handlers
assert os.waitpid(pid, 0)[1] == 0
print(len(list(folder.glob("fake-*"))), flush=True)
""",
    )
    output, errors = process.communicate(timeout=30)
    assert (process.returncode, output, errors) == (0, "0\n", "")
    assert len(list(tmp_path.glob("fake-*"))) == 1


def test_a_session_refuses_work_in_a_forked_child() -> None:
    session = Session(FakeProvider())
    session._pid += 1  # what a child sees
    with pytest.raises(ConfigurationError, match="after a fork"):
        session.sandbox()
    session._pid = os.getpid()
    session.close().result(5)


def info(**tags: str) -> SandboxInfo:
    return SandboxInfo("id", "fake", SandboxState.RUNNING, tags)


def test_an_orphan_is_what_a_dead_process_of_this_machine_owned() -> None:
    mine = {_tags.OWNER: _cleanup.owner()}
    child = subprocess.Popen(["cat"], stdin=subprocess.PIPE)
    host = _cleanup.owner().partition(":")[0]
    dead = {_tags.OWNER: f"{host}:{child.pid}:{_cleanup._start_time(child.pid)}"}
    child.communicate()
    assert not _cleanup.is_orphan(info(**mine))
    assert _cleanup.is_orphan(info(**dead))
    assert not _cleanup.is_orphan(info(**dead, **{_tags.DETACH: "1"}))
    assert not _cleanup.is_orphan(info(**{_tags.OWNER: f"another-host:{child.pid}:1"}))
    assert not _cleanup.is_orphan(info())


def test_a_sweep_deletes_what_matches_and_nothing_else() -> None:
    provider = FakeProvider()

    async def sweep(**selectors: object) -> int:
        return len(await _cleanup.sweep(provider, **selectors))  # type: ignore[arg-type] # forwarded

    with Session(provider, tags="run:42") as session:
        first = session.sandbox(tags="kind:a").start().result(5)
        session.sandbox(tags="kind:b").start().result(5)
        assert asyncio.run(sweep(tags={"run": "42"}, dry_run=True)) == 2
        assert asyncio.run(sweep(tags={"run": "42"}, older_than=3600.0)) == 0
        assert asyncio.run(sweep(tags={"run": "42"}, orphans=True, expired=True)) == 0
        assert asyncio.run(sweep(tags={"run": "42", "kind": "b"})) == 1
        assert [found.id for found in session.list("run:42").result(5)] == [first.id]


def test_expiry_is_read_from_the_backend_or_the_tags() -> None:
    past = datetime.datetime.now(datetime.UTC) - datetime.timedelta(seconds=1)
    assert _cleanup.is_expired(SandboxInfo("i", "f", SandboxState.RUNNING, {}, expires_at=past))
    assert _cleanup.is_expired(info(**{_tags.EXPIRES: "1"}))
    assert not _cleanup.is_expired(info())

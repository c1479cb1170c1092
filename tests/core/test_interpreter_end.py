"""The interpreter's end: what is open is closed, what could not be is named, and nothing hangs."""

import os
import subprocess
import sys
from pathlib import Path
from tempfile import gettempdir

import pytest

from tests.local_here import require_local

PRELUDE = """
import asyncio, atexit, contextlib, os, sys, threading, time
early = contextlib.ExitStack()
atexit.register(early.close)
from sandboxkit import Session
from sandboxkit.testing import FakeProvider
late = contextlib.ExitStack()
atexit.register(late.close)
provider = sys.argv[1]

def session():
    return Session(FakeProvider() if provider == "fake" else provider)

class AtEnd:
    def __init__(self, call):
        self.call = call
    def __del__(self):
        try:
            self.call()
            print("ended", flush=True)
        except Exception as error:
            print(f"{type(error).__name__}: {error}", flush=True)
"""
GENERATOR = """
def lines():
    with session() as made, made.sandbox() as box, box.terminal() as terminal:
        yield terminal.run("echo begun").result().output.strip()
suspended = lines()
print(next(suspended))
"""
FINALIZER = """
made = session()
print(made.run(["echo", "begun"]).result().stdout.strip())
finalizer = AtEnd(lambda made=made: made.close().result())
"""
EARLY = """
box = early.enter_context(early.enter_context(session()).sandbox())
print(box.exec(["echo", "begun"]).result().stdout.strip())
"""
UNFINISHED = """
made = session()
process = made.sandbox().exec(["sh", "-c", "echo begun; exec sleep 1000"])
print(next(iter(process.stdout)).strip(), flush=True)
finalizer = AtEnd(lambda process=process: process.result())
"""
REFUSED = """
made = session()
print(made.run(["echo", "begun"]).result().stdout.strip(), flush=True)
finalizer = AtEnd(lambda session=session: session().run(["true"]).result())
"""
HANDLER = """
def handle():
    print(session().run(["echo", "begun"]).result().stdout.strip())
atexit.register(handle)
"""
DAEMON = """
box = session().sandbox()
print(box.exec(["echo", "begun"]).result().stdout.strip())
def work():
    while True:
        with contextlib.suppress(Exception):
            box.exec(["sleep", "0.01"]).result()
for _ in range(3):
    threading.Thread(target=work, daemon=True).start()
"""
CALLBACK = """
with session() as made:
    process = made.run(["true"])
    process.add_done_callback(lambda _: (time.sleep(0.3), print("begun", flush=True)))
    process.result()
"""


def run(body: str, provider: str = "fake", folder: str = "") -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", PRELUDE + body, provider],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "TMPDIR": folder or gettempdir()},
    )


@pytest.mark.parametrize(
    ("body", "provider", "ends"),
    [
        (GENERATOR, "local", ""),
        (FINALIZER, "fake", "ended"),
        (EARLY, "local", ""),
        (EARLY, "fake", ""),
        (EARLY.replace("early", "late"), "fake", ""),
        (HANDLER, "fake", ""),
        (CALLBACK, "fake", ""),
    ],
    ids=["generator", "finalizer", "early-local", "early", "late", "handler", "callback"],
)
def test_objects_closed_late_find_everything_closed(body: str, provider: str, ends: str) -> None:
    if provider == "local":
        require_local()
    done = run(body, provider)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.split() == ["begun", *ends.split()]


def test_daemon_threads_that_use_a_sandbox_do_not_delay_the_exit() -> None:
    done = run(DAEMON)
    assert (done.returncode, done.stdout) == (0, "begun\n")


def test_a_call_that_never_ended_raises() -> None:
    done = run(UNFINISHED)
    assert done.returncode == 0
    assert done.stdout.startswith("begun\nSandboxTerminatedError: ")


def test_a_call_during_interpreter_exit_says_when_it_can_be_made() -> None:
    done = run(REFUSED)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("begun\nConfigurationError: the interpreter is exiting")
    assert "make it earlier" in done.stdout


def test_sandboxes_that_cannot_be_closed_are_named_and_the_rest_is_closed(tmp_path: Path) -> None:
    body = """
import sandboxkit._exit
sandboxkit._exit._EXIT_SECONDS = 3.0
class Stuck(FakeProvider):
    async def delete(self, sandbox_id):
        await asyncio.Event().wait()
class Broken(FakeProvider):
    async def delete(self, sandbox_id):
        raise OSError("no way")
class Well(FakeProvider):
    async def delete(self, sandbox_id):
        await super().delete(sandbox_id)
        print("deleted", flush=True)
sessions = [Session(kind()) for kind in (Stuck, Broken, Well)]
for each in sessions:
    each.sandbox().start().result()
print(*[each.id for each in sessions])
"""
    done = run(body, folder=str(tmp_path))  # what is left is pytest's to remove
    stuck, broken, well, deleted = done.stdout.split()
    output = sorted(done.stderr.splitlines(), key=lambda line: stuck not in line)
    assert (done.returncode, deleted, len(output)) == (0, "deleted", 2)
    assert output[0].startswith(f"<Session {stuck} provider=fake> was not closed")
    assert "TimeoutError" in output[0]
    assert output[1].startswith(f"<Session {broken} provider=fake> was not closed")
    assert "OSError no way; 'sandboxkit ls'" in output[1]
    assert well not in done.stderr


def test_a_subinterpreter_is_refused() -> None:
    pytest.importorskip("_xxsubinterpreters")
    done = run("""
import _xxsubinterpreters
inner = _xxsubinterpreters.create()
_xxsubinterpreters.run_string(inner, '''
import sys
sys.path[:] = ''' + repr(sys.path) + '''
from sandboxkit import ConfigurationError, Session
from sandboxkit.testing import FakeProvider
try:
    Session(FakeProvider()).run(["true"])
except ConfigurationError as error:
    print(error, flush=True)
''')
_xxsubinterpreters.destroy(inner)
""")
    assert done.returncode == 0, done.stderr
    assert "use it in Python's main interpreter" in done.stdout

"""The mistakes of a newcomer: each error names the thing and what to do instead."""

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sandboxkit import ImageNotFoundError, Session, wait
from sandboxkit.testing import FakeProvider


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    with Session(FakeProvider()) as session:
        yield session


# Any: what newcomers pass has not the types it should have.
Mistake = Callable[[Any], object]
make: Any = Session
wait_for: Any = wait
MISTAKES: list[tuple[str, Mistake, str]] = [
    ("memory", lambda s: s.sandbox(memory=512), "'memory' (did you mean 'memory_mb'?)"),
    ("cpu", lambda s: s.run(["true"], cpu=1), "'cpu' (did you mean 'cpus'?)"),
    ("tag", lambda s: s.sandbox(tag="run:1"), "'tag' (did you mean 'tags'?)"),
    ("envs", lambda s: make(FakeProvider(), envs={}), "did you mean 'env'?"),
    ("provider", lambda s: make("dokcer"), "'dokcer' (did you mean 'docker'?)"),
    ("Local", lambda s: make("Local"), "'Local' (did you mean 'local'?)"),
    ("class", lambda s: make(FakeProvider), "use an object of the class, as FakeProvider()"),
    ("Strict", lambda s: s.sandbox(profile="Strict"), "(did you mean 'strict'?)"),
    ("host", lambda s: s.sandbox(network="host"), "use one of 'none', 'internet'"),
    (
        "network",
        lambda s: s.sandbox(network=True),
        "use 'none', 'internet', ['pypi.org'], or Egress(",
    ),
    (
        "memory_mb",
        lambda s: s.sandbox(memory_mb="512m"),
        "memory_mb='512m' is not valid; use a whole",
    ),
    ("cpus", lambda s: s.sandbox(cpus="1"), "cpus='1' is not valid; use a positive number"),
    ("lifetime", lambda s: s.sandbox(lifetime="1h"), "lifetime='1h' is not valid; use a positive"),
    ("tags", lambda s: s.sandbox(tags=5), "use 'run:42', a list of such strings or a mapping"),
    ("tag-key", lambda s: s.sandbox(tags="x y:"), "bad tag key 'x y': use 1 to 63 letters"),
    ("files", lambda s: s.sandbox(files=["a"]), "files is a list; use a mapping such as"),
    ("reset", lambda s: s.sandbox(reuse="reset"), "only a sandbox with profile='strict'"),
    ("line", lambda s: s.run("ls -l"), "for a shell line use ['sh', '-c', 'ls -l']"),
    (
        "number",
        lambda s: s.run(["sleep", 5]),
        "argv holds 5; every argument must be a str, such as str(",
    ),
    (
        "words",
        lambda s: s.sandbox().exec("ls", "-l"),
        "takes a command as one list: exec(['ls', '-l'])",
    ),
    (
        "place",
        lambda s: s.run(["ls"], "/tmp"),
        "run() takes argv by position: pass '/tmp' and what follows by name, such as",
    ),
    ("lacking", lambda s: s.sandbox().exec(), "missing 1 required positional argument: 'argv'"),
    (
        "time_out",
        lambda s: s.sandbox().exec(["ls"], time_out=5),
        "exec() has no argument 'time_out' (did you mean 'timeout'?)",
    ),
    ("run-time_out", lambda s: s.run(["ls"], time_out=5), "(did you mean 'timeout'?)"),
    ("empty", lambda s: s.run([]), "argv is empty: (); give at least a program"),
    (
        "timeout",
        lambda s: s.run(["ls"], timeout="5"),
        "timeout='5' is not valid; use a positive number",
    ),
    (
        "negative",
        lambda s: s.run(["ls"], timeout=-1),
        "timeout=-1 is not valid; use a positive number",
    ),
    ("cwd", lambda s: s.run(["ls"], cwd="src"), "use an absolute path such as '/workspace/src'"),
    ("env", lambda s: s.run(["ls"], env={"A": 1}), "env['A'] is a int; use a str"),
    ("env-list", lambda s: s.run(["ls"], env=["A=1"]), "use a mapping such as {'NAME': 'value'}"),
    ("code", lambda s: s.run_python(["print(1)"]), "is not valid; use the text of a program"),
    ("relative", lambda s: s.sandbox().read_file("a.txt"), "such as '/workspace/a.txt'"),
    (
        "data",
        lambda s: s.sandbox().write_file("/a", None),
        "use bytes, a bytearray, a memoryview or a str",
    ),
    (
        "upload",
        lambda s: s.sandbox().upload("/nope", "/a"),
        "cannot upload '/nope': there is no such file",
    ),
    ("stdin", lambda s: s.run(["true"]).stdin.write("x"), "pass stdin=True to exec()"),
    ("patience", lambda s: s.run(["true"]).result("5"), "timeout='5' is not valid; use seconds"),
    ("wait", lambda s: wait_for(s.run(["true"])), "use a list of operations"),
    ("pool", lambda s: make(FakeProvider(), pool="4"), "use a number, or a tuple (least, most)"),
    ("none", lambda s: make(FakeProvider(), max_concurrency=0), "use a whole number from 1"),
    ("warm", lambda s: s.warm(), "make the Session with pool="),
    ("interpreter", lambda s: s.sandbox().run_python("1"), "or use session.run_python(code)"),
    ("adopt", lambda s: s.adopt(s.sandbox()), "start() it first"),
]


@pytest.mark.parametrize(
    ("mistake", "says"), [pytest.param(call, says, id=name) for name, call, says in MISTAKES]
)
def test_a_mistake_names_its_remedy(session: Session, mistake: Mistake, says: str) -> None:
    with pytest.raises(ValueError, match=r".") as error:  # what ConfigurationError is
        mistake(session)
    assert says in str(error.value)


def test_a_closed_session_and_a_stopped_sandbox_name_the_next_one() -> None:
    session = Session(FakeProvider())
    sandbox = session.sandbox()
    sandbox.stop().result(60)
    with pytest.raises(Exception, match=r"was stopped; make a new one with session.sandbox\(\)"):
        sandbox.exec(["true"])
    session.close().result(60)
    with pytest.raises(ValueError, match="is closed; make a new Session"):
        session.run(["true"])


def test_a_live_output_says_where_the_whole_text_is(session: Session) -> None:
    process: Any = session.run(["true"])
    with pytest.raises(
        AttributeError, match=r"'strip'; the whole output is the str result\(\).stdout"
    ):
        process.stdout.strip()
    process.result(60)


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("session.exec", "use run(), or sandbox().exec()"),
        ("session.stop", "use close()"),
        ("sandbox.run", "use exec()"),
        ("sandbox.close", "use stop()"),
        ("process.wait", "use result(), which waits for the end"),
        ("process.communicate", "use result(), which has stdout and stderr"),
        ("result.exit_code", "use returncode"),
        ("result.nope", "no attribute 'nope'"),
    ],
)
def test_a_name_of_another_library_leads_to_ours(session: Session, name: str, says: str) -> None:
    sandbox = session.sandbox()
    process = session.run(["true"])
    found = {
        "session": session,
        "sandbox": sandbox,
        "process": process,
        "result": process.result(60),
    }
    owner, attribute = name.split(".")
    with pytest.raises(AttributeError, match=re.escape(says) + "$") as error:
        getattr(found[owner], attribute)
    assert error.value.name == attribute  # Python adds the nearest name by itself


FAILURES = {
    "image": "Session('local').run(['true'], image='/nope').result()",
    "daemon": "Session('docker').run(['true']).result()",
    "cluster": "Session('kubernetes').run(['true']).result()",
    "key": "Session('e2b').run(['true']).result()",
    "token": "Session('modal').run(['true']).result()",
    "program": "Session('local').run(['nope']).result()",
    "status": "Session('local').run(['false'], check=True).result()",
    "timeout": "Session('local').run(['sleep', '9'], timeout=0.1).result()",
    "file": "Session('local').sandbox().read_file('/nope').result()",
    "name": "Session('dokcer')",
    "words": "Session('local').sandbox().exec('ls', '-l').result()",
}
_LONGEST = 15


@pytest.mark.parametrize("mistake", FAILURES.values(), ids=FAILURES)
def test_a_traceback_fits_on_a_screen(mistake: str, tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    program.write_text(f"from sandboxkit import *\n{mistake}\n")
    nothing = {"DOCKER_HOST": "unix:///nope", "KUBECONFIG": "/nope", "HOME": str(tmp_path)}
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("E2B_", "MODAL_", "KUBE"))
    }
    ended = subprocess.run(
        [sys.executable, str(program)],
        env=environment | nothing,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ended.returncode == 1
    assert ended.stderr.count("Traceback (most recent call last)") == 1, ended.stderr
    assert ended.stderr.splitlines()[-1].startswith("sandboxkit.errors."), ended.stderr
    assert len(ended.stderr.splitlines()) <= _LONGEST, ended.stderr


@pytest.mark.skipif(sys.version_info >= (3, 14), reason="asyncio.run() takes awaitables there")
@pytest.mark.parametrize(
    "run",
    [
        "asyncio.run(session.run(['true']))",
        "asyncio.run(session.list())",
        "asyncio.Runner().run(session.run(['true']))",
    ],
)
def test_asyncio_run_of_an_operation_names_what_to_write(run: str, tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    program.write_text(
        "import asyncio\nfrom sandboxkit import Session\nfrom sandboxkit.testing import FakeProvider\n"
        f"session = Session(FakeProvider())\n{run}\n"
    )
    ended = subprocess.run(
        [sys.executable, str(program)], capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode == 1
    last = ended.stderr.splitlines()[-1]
    assert last.startswith("ValueError: a coroutine was expected, got <"), ended.stderr
    assert "asyncio.run(main())" in last
    assert "await" in last
    assert len(ended.stderr.splitlines()) <= _LONGEST, ended.stderr


def test_an_operation_names_the_remedy_to_asyncio_only(session: Session) -> None:
    process = session.run(["true"])
    assert "asyncio" not in repr(process)
    process.result(60)


def test_the_cause_of_an_error_is_logged_at_debug(caplog: pytest.LogCaptureFixture) -> None:
    with (
        caplog.at_level("DEBUG", "sandboxkit"),
        Session("local") as session,
        pytest.raises(ImageNotFoundError) as raised,
    ):
        session.run(["true"], image="/nope").result(60)
    assert raised.value.__cause__ is None
    assert "Traceback (most recent call last)" in caplog.text
    [record] = [each for each in caplog.records if each.exc_info]
    assert record.exc_info is not None
    assert record.exc_info[1] is raised.value


def test_an_unknown_name_without_a_near_match_suggests_none(session: Session) -> None:
    options: dict[str, Any] = {"zzz": 1}
    with pytest.raises(
        ValueError, match=r"sandbox\(\) has no argument 'zzz'; the arguments are counted, image"
    ):
        session.sandbox(**options)

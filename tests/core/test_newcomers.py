"""The mistakes of a newcomer: each error names the thing and what to do instead."""

import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import sandboxkit
from sandboxkit import ConfigurationError, ImageNotFoundError, Session
from sandboxkit.testing import FakeProvider
from sandboxkit.tunnels import PortConnection
from tests.pool.test_processes import Here


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    with Session(FakeProvider()) as session:
        yield session


# Any: rows of either kind.
MISTAKES: dict[str, Any] = tomllib.loads(Path(__file__).with_name("mistakes.toml").read_text())


class Lies(os.PathLike[str]):
    """A path whose text is none."""

    def __fspath__(self) -> Any:
        return b"bytes"


async def handle(connection: PortConnection) -> None:
    """Never run, for want of a running event loop."""


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_names_its_remedy(session: Session, name: str) -> None:
    row = MISTAKES[name]
    names = {"s": session, "b": session.sandbox(), "FakeProvider": FakeProvider, "Here": Here}
    names |= {"Lies": Lies, "handle": handle}
    says = row.get("matches") or re.escape(row["says"])
    with pytest.raises(ConfigurationError, match=says):
        eval(row["call"], {**vars(sandboxkit), **names})


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("session.exec", "use run(), or sandbox().exec()"),
        ("session.stop", "use close()"),
        ("sandbox.run", "use exec()"),
        ("sandbox.close", "use stop()"),
        ("process.wait", "use result(), which waits for the end"),
        ("process.communicate", "use result(), which has stdout and stderr"),
        ("stdout.strip", "'strip'; the whole output is the str result().stdout"),
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
        "stdout": process.stdout,
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

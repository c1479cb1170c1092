"""Every public call refuses what it does not understand before anything starts, and names what to do instead."""

import asyncio
import copy
import datetime
import gc
import itertools
import json
import linecache
import logging
import os
import pathlib
import pickle
import re
import sys
import tomllib
import traceback
from collections.abc import Callable, Hashable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

import sandboxkit
from sandboxkit import ConfigurationError, Operation, Sandbox, SandboxError, Session, _spec, _tags
from sandboxkit._calls import _foreign_names
from sandboxkit.errors import ImageNotFoundError
from sandboxkit.testing import FakeProvider
from sandboxkit.tunnels import PortConnection
from sandboxkit.types import SandboxSpec
from tests.pool.providers import Counting, Here, own_places

__all__ = ["own_places"]

pytestmark = pytest.mark.usefixtures("own_places")  # of a session with `max_live`

# Any: what is passed here is of every type but the declared one.
ARGUMENTS: dict[str, Any] = tomllib.loads(Path(__file__).with_name("arguments.toml").read_text())
ODD: dict[str, Any] = {
    name: eval(text, {"FakeProvider": FakeProvider}) for name, text in ARGUMENTS.pop("odd").items()
}
KEYS = ("env name", "files path")
NEEDS_A_COMMAND = ("lines(", "Stdin.")
TAKES_TIME = ("result(", "exception(")


class Lies(os.PathLike[str]):
    """A path whose text is none."""

    def __fspath__(self) -> Any:
        return b"bytes"


async def handle(connection: PortConnection) -> None:
    """Never run, for want of a running event loop."""


def names(session: Session, sandbox: Sandbox) -> dict[str, Any]:
    """Return what the calls of the tables may name."""
    modules = (asyncio, copy, datetime, json, os, pathlib, pickle, sandboxkit)
    own: dict[str, Any] = {"__name__": "__main__", "s": session, "b": sandbox, "__file__": __file__}
    own |= {"FakeProvider": FakeProvider, "Here": Here, "Lies": Lies, "handle": handle}
    own |= {"cancelled": lambda: Operation(asyncio.sleep(0))}
    return {**vars(sandboxkit), **{each.__name__: each for each in modules}, **own}


def make(call: str, session: Session, sandbox: Sandbox, value: object) -> object:
    """Make a call of the table."""
    return eval(call, {**names(session, sandbox), "v": value})


@pytest.mark.parametrize("name", ARGUMENTS)
def test_an_invalid_argument_is_refused_before_anything_happens(name: str) -> None:
    row = ARGUMENTS[name]
    provider = Counting()
    with Session(provider) as session:
        sandbox = session.sandbox()
        for odd, value in ODD.items():
            if odd in row["takes"] or (odd == "0" and name.startswith(TAKES_TIME)):
                continue
            if name in KEYS and not isinstance(value, Hashable):
                continue
            with pytest.raises(ConfigurationError, match=row["names"]) as refused:
                make(row["call"], session, sandbox, value)
            assert len(str(refused.value)) < 400
        if not name.startswith(NEEDS_A_COMMAND):
            assert provider.attempts == []
            assert sandbox.id is None
            assert not session._sandboxes - {sandbox}


@pytest.mark.parametrize("name", ARGUMENTS)
def test_a_valid_argument_gives_a_result_or_a_typed_error(name: str) -> None:
    row = ARGUMENTS[name]
    with Session(FakeProvider()) as session:
        sandbox = session.sandbox()
        for odd in row["takes"]:
            try:
                made = make(row["call"], session, sandbox, ODD[odd])
                if isinstance(made, Sandbox):
                    made.start().result(60)
                    made.stop().result(60)  # else one that is detached stays
                elif isinstance(made, Session):
                    made.close().result(60)
                elif isinstance(made, Operation) and ODD[odd] is not True:  # stdin, left open
                    made.result(60)
            except SandboxError:
                pass  # what FakeProvider cannot do, or has not got


def test_tags_are_normalised() -> None:
    assert _tags.parse("run:42") == _tags.parse("run=42") == {"run": "42"}
    assert _tags.parse("rl-training") == {"rl-training": ""}
    assert _tags.parse(("a", "b:1=2")) == {"a": "", "b": "1=2"}
    assert _tags.parse({"model": "tiny"}) == {"model": "tiny"}
    assert _tags.parse(None) == {}


def test_overrides_merge_tags_and_env_and_replace_the_rest() -> None:
    base = _spec.build(SandboxSpec(), {"tags": "a:1", "env": {"X": "1"}, "pids": 10})
    spec = _spec.build(base, {"tags": "b:2", "env": {"Y": "2"}, "pids": 20})
    assert (spec.tags, spec.env, spec.pids) == ({"a": "1", "b": "2"}, {"X": "1", "Y": "2"}, 20)


def test_a_secret_is_in_no_repr_and_not_in_the_message_that_refuses_it() -> None:
    assert "hunter2" not in repr(_spec.build(SandboxSpec(), {"secrets": {"KEY": "hunter2"}}))
    for secrets in ("hunter2", ["hunter2"], {"A": "hunter2\0"}, {"A": "hunter2\ud800"}):
        odd: Any = secrets
        with pytest.raises(ConfigurationError) as refused:
            Session(FakeProvider(), secrets=odd)
        assert "hunter2" not in str(refused.value)


class Changing(Sequence[str]):
    """A command that is another one each time it is read."""

    def __init__(self) -> None:
        self._turns = itertools.count()

    def __len__(self) -> int:
        return 2

    def __getitem__(self, at: Any) -> Any:
        if at >= 2:
            raise IndexError
        return "echo" if at == 0 else f"{next(self._turns)}"


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_every_kind_of_bytes_is_the_commands_input(kind: Callable[[bytes], Any]) -> None:
    with Session(FakeProvider()) as session:
        sandbox = session.sandbox(files={"/tmp/b": kind(b"of files")})
        assert sandbox.exec(["cat"], stdin=kind(b"abc")).result(60).stdout == "abc"
        sandbox.write_file("/tmp/a", kind(b"written")).result(60)
        assert sandbox.read_file("/tmp/a").result(60) == b"written"
        assert sandbox.read_file("/tmp/b").result(60) == b"of files"
        process = sandbox.exec(["cat"], stdin=True)
        process.stdin.write(kind(b"live")).result(60)
        process.stdin.close().result(60)
        assert process.result(60).stdout == "live"


def test_arguments_are_copied_when_the_call_is_made() -> None:
    data, env = bytearray(b"before"), {"A": "before"}
    with Session(FakeProvider()) as session:
        sandbox = session.sandbox()
        process = sandbox.exec(["sh", "-c", "cat; echo $A"], stdin=data, env=env)
        written = sandbox.write_file("/tmp/a", data)
        terminal = sandbox.terminal(env=env)
        data[:], env["A"] = b"after!", "after!"
        assert process.result(60).stdout == "beforebefore\n"
        written.result(60)
        assert sandbox.read_file("/tmp/a").result(60) == b"before"
        assert terminal.run("echo $A").result(60).output == "before\n"
        assert sandbox.exec(Changing()).result(60).argv == ("echo", "0")


@pytest.fixture
def session() -> Iterator[Session]:
    with Session(FakeProvider()) as session:
        yield session


MISTAKES: dict[str, dict[str, str]] = tomllib.loads(
    Path(__file__).with_name("mistakes.toml").read_text()
)
ROWS = {code: error for rows in MISTAKES.values() for code, error in rows.items()}
PROGRAM = "train.py"
LINES = 15
FOREIGN: dict[str, dict[str, str]] = json.loads(
    (Path(_foreign_names.__file__).parent / "foreign_names.json").read_text()
)


@pytest.fixture(scope="module")
def quiet() -> Iterator[None]:
    """Fail if a mistake leads to anything but its error, such as a log of a result that nobody asked for."""
    said: list[str] = []
    gc.collect()  # what the tests before have left
    handler = logging.Handler("WARNING")
    handler.emit = lambda record: said.append(record.getMessage())  # type: ignore[method-assign]
    logging.getLogger().addHandler(handler)
    yield
    gc.collect()
    Operation(asyncio.sleep(0)).result(60)  # the loop has let go of what has ended
    gc.collect()
    logging.getLogger().removeHandler(handler)
    assert said == []


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """There is no daemon, no cluster and no vendor's key."""
    for name in os.environ:
        if name.startswith(("E2B_", "MODAL_", "DAYTONA_", "KUBE")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("DOCKER_HOST", "unix:///nope")
    monkeypatch.setenv("KUBECONFIG", "/nope")
    monkeypatch.setenv("HOME", str(tmp_path))


def traceback_of(error: BaseException) -> list[str]:
    """Return the traceback's lines as a program shows them, without the frames of asyncio."""
    shown = traceback.TracebackException.from_exception(error)
    files = [frame.filename for frame in shown.stack]
    kept = [
        each for each in shown.stack[files.index(PROGRAM) :] if "/asyncio/" not in each.filename
    ]
    shown.stack = traceback.StackSummary.from_list(kept)
    return "".join(shown.format()).splitlines()


@pytest.mark.usefixtures("quiet", "bare")
@pytest.mark.parametrize("code", ROWS)
def test_a_mistake_names_the_thing_and_the_remedy_on_one_screen(code: str) -> None:
    if sys.version_info >= (3, 14) and ".run(s." in code:
        pytest.skip("asyncio.run() takes awaitables")
    kind, _, words = ROWS[code].partition(": ")
    linecache.cache[PROGRAM] = (len(code), None, code.splitlines(keepends=True), PROGRAM)
    with pytest.raises(BaseException) as raised, Session(FakeProvider()) as session:  # noqa: PT011 - named in the table
        exec(compile(code, PROGRAM, "exec"), names(session, session.sandbox()))
    assert type(raised.value).__name__ == kind
    assert re.search(".*".join(map(re.escape, words.split("..."))), str(raised.value), re.DOTALL)
    assert len(traceback_of(raised.value)) <= LINES


def test_a_name_of_another_library_is_missing_and_leads_to_ours(session: Session) -> None:
    process, sandbox = session.run(["true"]), session.sandbox().start().result(60)
    kernel, terminal = sandbox.python(ipykernel=False), sandbox.terminal()
    things = {
        "Image": sandboxkit.Image(),
        "Kernel": kernel,
        "CellResult": kernel.run("1").result(60),
        "Terminal": terminal,
        "TerminalResult": terminal.run("true").result(60),
        "Session": session,
        "Sandbox": sandbox,
        "Operation": sandbox.stat("/"),
        "Process": process,
        "ProcessResult": process.result(60),
        "FileInfo": sandbox.stat("/").result(60),
        "SandboxInfo": sandbox.status().result(60),
    }
    for owner, thing in things.items():
        for ours, foreign in FOREIGN[owner].items():
            for name in foreign.split():
                with pytest.raises(AttributeError, match=f"{re.escape(ours)}$") as error:
                    getattr(thing, name)
                assert (error.value.name, error.value.obj) == (name, None)  # Python adds no name


def test_the_name_of_an_integration_says_where_it_is() -> None:
    for ours, foreign in FOREIGN["sandboxkit"].items():
        for name in foreign.split():
            with pytest.raises(ImportError, match=re.escape(ours)):
                getattr(sandboxkit, name)


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

"""Every public call refuses what it does not understand, at once and before anything is started."""

import itertools
import math
import re
import tomllib
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

import sandboxkit
from sandboxkit import (
    ConfigurationError,
    Operation,
    Sandbox,
    SandboxError,
    Session,
    _machine_semaphore,
    _spec,
    _tags,
)
from sandboxkit.testing import FakeProvider
from sandboxkit.types import SandboxSpec
from tests.pool.providers import Counting
from tests.pool.test_processes import Here

ODD: Mapping[str, Any] = {
    "None": None,
    "True": True,
    "False": False,
    "-1": -1,
    "0": 0,
    "3": 3,
    "1.5": 1.5,
    "nan": math.nan,
    "inf": math.inf,
    "10**30": 10**30,
    "10**5000": 10**5000,
    "''": "",
    "'x'": "x",
    "NUL": "\0",
    "surrogate": "\ud800",
    "b'x'": b"x",
    "bytearray": bytearray(b"x"),
    "memoryview": memoryview(b"x"),
    "[]": [],
    "[3]": [3],
    "{}": {},
    "{3: 3}": {3: 3},
    "set": {"x"},
    "object": object(),
    "class": FakeProvider,
}
# Any: what is passed here is of every type but the declared one.
ARGUMENTS: dict[str, Any] = tomllib.loads(Path(__file__).with_name("arguments.toml").read_text())
KEYS = ("env name", "files path")
NEEDS_A_COMMAND = ("lines(", "Stdin.")
TAKES_TIME = ("result(", "exception(")


@pytest.fixture(autouse=True)
def places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A session with `max_live` has its places in a folder of the test's."""
    monkeypatch.setenv("SANDBOXKIT_STATE_DIR", str(tmp_path / "state"))
    yield
    _machine_semaphore._forget()


def cancelled() -> Operation[None]:
    async def nothing() -> None:
        pass

    return Operation(nothing())


def make(call: str, session: Session, sandbox: Sandbox, value: object) -> object:
    """Make a call of the table."""
    names = {"s": session, "b": sandbox, "v": value, "FakeProvider": FakeProvider, "Here": Here}
    names |= {"cancelled": cancelled, "__file__": __file__}
    return eval(call, {**vars(sandboxkit), **names})


def refusal(call: str, session: Session, sandbox: Sandbox, value: object) -> str:
    """What the ConfigurationError says; empty when the call is made. Other errors are raised."""
    try:
        make(call, session, sandbox, value)
    except ConfigurationError as error:
        return str(error)
    return ""


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
            message = refusal(row["call"], session, sandbox, value)
            assert re.search(row["names"], message), f"{odd}: {message or 'taken'}"
            assert len(message) < 400
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


@pytest.mark.parametrize(
    ("tags", "expected"),
    [
        ("run:42", {"run": "42"}),
        ("run=42", {"run": "42"}),
        ("rl-training", {"rl-training": ""}),
        (("a", "b:1=2"), {"a": "", "b": "1=2"}),
        ({"model": "tiny"}, {"model": "tiny"}),
        (None, {}),
    ],
)
def test_tags_are_normalised(tags: Any, expected: dict[str, str]) -> None:
    assert _tags.parse(tags) == expected


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

"""Every public call refuses what it does not understand, at once and before anything is started."""

import itertools
import math
import os
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import pytest

from sandboxkit import (
    ConfigurationError,
    Operation,
    PtySize,
    Sandbox,
    SandboxError,
    Session,
    as_completed,
    wait,
)
from sandboxkit.testing import FakeProvider
from sandboxkit.types import SandboxSpec

# Any: what is passed here is of every type but the declared one.
Call = Callable[[Session, Sandbox, Any], Any]

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
CONTENT = {"''", "'x'", "NUL", "b'x'", "bytearray", "memoryview"}
SECONDS = {"None", "3", "1.5"}
PATIENCE = {"None", "0", "3", "1.5"}
TEXT = {"None", "'x'"}
CONTENT_TEXT = {"''", "'x'", "NUL", "surrogate"}
FLAG = {"True", "False"}
VARIABLE = {"''", "'x'"}
NOTHING: set[str] = set()


def option(name: str) -> Call:
    return lambda session, _, value: session.sandbox(**{name: value})


def keyword(name: str) -> Call:
    return lambda _, sandbox, value: sandbox.exec(["true"], **{name: value})


def run_keyword(name: str) -> Call:
    return lambda session, _, value: session.run(["true"], **{name: value})


def cancelled() -> Operation[None]:
    async def nothing() -> None:
        pass

    return Operation(nothing())


# What is called, what its message must name, and which of ODD it does take.
PARAMETERS: Mapping[str, tuple[Call, str, set[str]]] = {
    "Session(provider)": (lambda s, b, v: Session(v), "provider", {"None"}),
    "Session(max_concurrency)": (
        lambda s, b, v: Session(FakeProvider(), max_concurrency=v),
        "max_concurrency",
        {"None", "3"},
    ),
    "Session(max_live)": (
        lambda s, b, v: Session(FakeProvider(), max_live=v),
        "max_live",
        {"None"},
    ),
    "image": (option("image"), "image", TEXT),
    "command": (option("command"), "command", {"None"}),
    "command item": (
        lambda s, b, v: s.sandbox(command=["true", v]),
        "command|argument",
        VARIABLE,
    ),
    "env": (option("env"), "env", {"{}"}),
    "env name": (lambda s, b, v: s.sandbox(env={v: "x"}), "env", {"'x'"}),
    "env value": (lambda s, b, v: s.sandbox(env={"A": v}), "env", VARIABLE),
    "workdir": (option("workdir"), "workdir", {"None"}),
    "user": (option("user"), "user", TEXT),
    "cpus": (option("cpus"), "cpus", SECONDS),
    "memory_mb": (option("memory_mb"), "memory_mb", {"None", "3"}),
    "disk_mb": (option("disk_mb"), "disk_mb", {"None", "3"}),
    "pids": (option("pids"), "pids", {"None", "3"}),
    "network": (option("network"), "network", NOTHING),
    "lifetime": (option("lifetime"), "lifetime", SECONDS),
    "tags": (option("tags"), "tag", {"'x'", "[]", "{}", "set"}),
    "tag": (lambda s, b, v: s.sandbox(tags=[v]), "tag", {"'x'"}),
    "tag value": (lambda s, b, v: s.sandbox(tags={"a": v}), "tag", VARIABLE),
    "files": (option("files"), "files", {"{}"}),
    "files path": (lambda s, b, v: s.sandbox(files={v: b""}), "files", NOTHING),
    "files content": (lambda s, b, v: s.sandbox(files={"/tmp/a": v}), "files", CONTENT),
    "secrets": (option("secrets"), "secrets", {"{}"}),
    "secret": (lambda s, b, v: s.sandbox(secrets={"A": v}), "secrets", VARIABLE),
    "gpu": (option("gpu"), "gpu", TEXT),
    "profile": (option("profile"), "profile", NOTHING),
    "detach": (option("detach"), "detach", FLAG),
    "counted": (lambda s, b, v: s.sandbox(counted=v), "counted", FLAG),
    "exec(argv)": (lambda s, b, v: b.exec(v), "argv", NOTHING),
    "exec(argument)": (lambda s, b, v: b.exec(["true", v]), "argv|argument", VARIABLE),
    "exec(cwd)": (keyword("cwd"), "cwd", {"None"}),
    "exec(env)": (keyword("env"), "env", {"None", "{}"}),
    "exec(env value)": (lambda s, b, v: b.exec(["true"], env={"A": v}), "env", VARIABLE),
    "exec(user)": (keyword("user"), "user", TEXT),
    "exec(timeout)": (keyword("timeout"), "timeout", SECONDS),
    "exec(check)": (keyword("check"), "check", FLAG),
    "exec(stdin)": (keyword("stdin"), "stdin", CONTENT | FLAG | {"None"}),
    "exec(pty)": (keyword("pty"), "pty", FLAG | {"None"}),
    "exec(pty rows)": (lambda s, b, v: b.exec(["true"], pty=PtySize(v, 1)), "pty", {"3"}),
    "exec(pty cols)": (lambda s, b, v: b.exec(["true"], pty=PtySize(1, v)), "pty", {"3"}),
    "exec(output_limit)": (keyword("output_limit"), "output_limit", {"None", "3"}),
    "run(argv)": (lambda s, b, v: s.run(v), "argv", NOTHING),
    "run(cwd)": (run_keyword("cwd"), "cwd", {"None"}),
    "run(timeout)": (run_keyword("timeout"), "timeout", SECONDS),
    "run(check)": (run_keyword("check"), "check", FLAG),
    "run(stdin)": (run_keyword("stdin"), "stdin", CONTENT | FLAG | {"None"}),
    "run(pty)": (run_keyword("pty"), "pty", FLAG | {"None"}),
    "run(output_limit)": (run_keyword("output_limit"), "output_limit", {"None", "3"}),
    "terminal(cwd)": (lambda s, b, v: b.terminal(cwd=v), "cwd", {"None"}),
    "terminal(env)": (lambda s, b, v: b.terminal(env=v), "env", {"None", "{}"}),
    "terminal(user)": (lambda s, b, v: b.terminal(user=v), "user", TEXT),
    "terminal(size)": (lambda s, b, v: b.terminal(size=v), "size", {"None"}),
    "terminal(output_limit)": (
        lambda s, b, v: b.terminal(output_limit=v),
        "output_limit",
        {"3"},
    ),
    "Terminal.run(command)": (lambda s, b, v: b.terminal().run(v), "command", VARIABLE),
    "Terminal.run(timeout)": (
        lambda s, b, v: b.terminal().run("", timeout=v),
        "timeout",
        PATIENCE,
    ),
    "Terminal.wait(timeout)": (
        lambda s, b, v: b.terminal().wait(timeout=v),
        "timeout",
        PATIENCE,
    ),
    "Terminal.interrupt(timeout)": (
        lambda s, b, v: b.terminal().interrupt(timeout=v),
        "timeout",
        PATIENCE,
    ),
    "Terminal.send(text)": (lambda s, b, v: b.terminal().send(v), "text", CONTENT),
    "Terminal.expect(pattern)": (
        lambda s, b, v: b.terminal().expect(v, timeout=0.1),
        "pattern",
        CONTENT_TEXT,
    ),
    "Terminal.resize(size)": (lambda s, b, v: b.terminal().resize(v), "size", NOTHING),
    "read_file(path)": (lambda s, b, v: b.read_file(v), "path", NOTHING),
    "read_file(max_bytes)": (lambda s, b, v: b.read_file("/a", max_bytes=v), "max_bytes", {"3"}),
    "write_file(path)": (lambda s, b, v: b.write_file(v, b""), "path", NOTHING),
    "write_file(data)": (lambda s, b, v: b.write_file("/tmp/a", v), "data", CONTENT),
    "write_file(mode)": (
        lambda s, b, v: b.write_file("/tmp/a", b"", mode=v),
        "mode",
        {"None", "0", "3"},
    ),
    "upload(local)": (lambda s, b, v: b.upload(v, "/tmp/a"), "local|no such file", NOTHING),
    "upload(remote)": (lambda s, b, v: b.upload(__file__, v), "path", NOTHING),
    "download(local)": (lambda s, b, v: b.download("/nothing", v), "local", {"'x'"}),
    "download(remote)": (lambda s, b, v: b.download(v, "a"), "path", NOTHING),
    "download(max_bytes)": (
        lambda s, b, v: b.download("/nothing", "a", max_bytes=v),
        "max_bytes",
        {"3"},
    ),
    "download(max_files)": (
        lambda s, b, v: b.download("/nothing", "a", max_files=v),
        "max_files",
        {"3"},
    ),
    "list_dir(path)": (lambda s, b, v: b.list_dir(v), "path", NOTHING),
    "stat(path)": (lambda s, b, v: b.stat(v), "path", NOTHING),
    "remove(path)": (lambda s, b, v: b.remove(v), "path", NOTHING),
    "remove(recursive)": (lambda s, b, v: b.remove("/nothing", recursive=v), "recursive", FLAG),
    "renew(lifetime)": (lambda s, b, v: b.renew(v), "lifetime", {"3", "1.5"}),
    "list(tags)": (lambda s, b, v: s.list(v), "tag", {"None", "'x'", "[]", "{}", "set"}),
    "list(state)": (lambda s, b, v: s.list(None, v), "state", {"None"}),
    "from_id(sandbox_id)": (lambda s, b, v: s.from_id(v), "sandbox_id", {"'x'"}),
    "adopt(sandbox)": (lambda s, b, v: s.adopt(v), "sandbox", {"'x'"}),
    "Sandbox.list(provider)": (
        lambda s, b, v: Sandbox.list("strict:input", provider=v),
        "provider",
        {"None"},
    ),
    "Sandbox.from_id(sandbox_id)": (lambda s, b, v: Sandbox.from_id(v), "sandbox_id", {"'x'"}),
    "wait(operations)": (lambda s, b, v: wait(v), "operations", {"[]", "{}"}),
    "wait(operation)": (lambda s, b, v: wait([v]), "operations", NOTHING),
    "wait(num_returns)": (lambda s, b, v: wait([], num_returns=v), "num_returns", {"3"}),
    "wait(timeout)": (lambda s, b, v: wait([], timeout=v), "timeout", PATIENCE),
    "as_completed(operations)": (lambda s, b, v: as_completed(v), "operations", {"[]", "{}"}),
    "as_completed(timeout)": (lambda s, b, v: as_completed([], timeout=v), "timeout", PATIENCE),
    "result(timeout)": (lambda s, b, v: cancelled().result(v), "timeout", PATIENCE - {"0"}),
    "exception(timeout)": (lambda s, b, v: cancelled().exception(v), "timeout", PATIENCE - {"0"}),
    "lines(max_length)": (
        lambda s, b, v: b.exec(["true"]).stdout.lines(max_length=v),
        "max_length",
        {"3"},
    ),
    "Stdin.write(data)": (
        lambda s, b, v: b.exec(["cat"], stdin=True).stdin.write(v),
        "data",
        CONTENT,
    ),
    "Stdin.resize(size)": (
        lambda s, b, v: b.exec(["cat"], stdin=True).stdin.resize(v),
        "size",
        NOTHING,
    ),
}
KEYS = ("env name", "files path")
NEEDS_A_COMMAND = ("lines(", "Stdin.")
TAKES_TIME = ("result(", "exception(")


class Recording(FakeProvider):
    """Counts the sandboxes that it was asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.creates = 0

    async def create(self, spec: SandboxSpec) -> str:
        self.creates += 1
        return await super().create(spec)


def refusal(call: Call, session: Session, sandbox: Sandbox, value: Any) -> str:
    """What the ConfigurationError says; empty when the call is made. Other errors are raised."""
    try:
        call(session, sandbox, value)
    except ConfigurationError as error:
        return str(error)
    return ""


@pytest.mark.parametrize("name", PARAMETERS)
def test_an_invalid_argument_is_refused_before_anything_happens(name: str) -> None:
    call, named, taken = PARAMETERS[name]
    provider = Recording()
    with Session(provider) as session:
        sandbox = session.sandbox()
        for odd, value in ODD.items():
            if odd in taken or (odd == "0" and name.startswith(TAKES_TIME)):
                continue
            if name in KEYS and not isinstance(value, Hashable):
                continue
            message = refusal(call, session, sandbox, value)
            assert message, f"took {odd}"
            assert any(each in message for each in named.split("|")), message
            assert len(message) < 400
        if not name.startswith(NEEDS_A_COMMAND):
            assert provider.creates == 0
            assert sandbox.id is None


@pytest.mark.parametrize("name", PARAMETERS)
def test_a_valid_argument_gives_a_result_or_a_typed_error(name: str) -> None:
    call, _, taken = PARAMETERS[name]
    with Session(FakeProvider()) as session:
        sandbox = session.sandbox()
        for odd in sorted(taken):
            try:
                made = call(session, sandbox, ODD[odd])
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
    ("call", "message"),
    [
        (lambda b: b.exec(["cat"], stdin=[98]), r"stdin=\[98\] is not valid; use bytes, a byte"),
        (lambda b: b.write_file("/a", 7), r"data=7 is not valid; use bytes, a bytearray"),
        (lambda b: b.exec(["a"], pty=PtySize(-1, 0)), r"pty=PtySize\(rows=-1, cols=0\).*65535"),
        (lambda b: b.exec(["a"], pty=PtySize(70000, 1)), r"PtySize\(rows=70000, cols=1\)"),
        (lambda b: b.read_file("/a", max_bytes=None), "max_bytes=None is not valid; use a whole"),
        (lambda b: b.exec(["a"], env={"A": "\ud800"}), r"env\['A'\] has lone surrogates.*replace"),
        (lambda b: b.exec(["a"], env=["A=1"]), r"env is a list; use a mapping such as \{'NAME'"),
        (lambda b: b.exec(["a"], user="x\0"), r"user='x\\x00' is not valid; use a non-empty"),
        (lambda b: b.exec(["a"], timeout="3"), "timeout='3' is not valid; use a positive number"),
        (lambda b: b.write_file("/a", b"", mode=0o10000), "mode=4096 .* 0o7777 such as 0o755"),
        (lambda b: b.write_file("/a", "\ud800"), "data .* cannot be encoded .* pass bytes"),
        (lambda b: b.read_file(b"/a"), r"path=b'/a' is not valid; use the absolute path"),
        (lambda b: b.upload(3, "/a"), "local=3 is not valid; use a path on this machine"),
        (lambda b: wait(b.exec(["a"])), r"use a list of operations"),
        (lambda b: wait([], timeout=-0.5), r"timeout=-0.5 is not valid; use seconds from 0 on"),
    ],
)
def test_a_message_names_the_value_and_the_remedy(
    call: Callable[[Any], object], message: str
) -> None:
    with Session(FakeProvider()) as session, pytest.raises(ConfigurationError, match=message):
        call(session.sandbox())


def test_a_secret_is_not_in_the_message_that_refuses_it() -> None:
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
        assert session.run(["cat"], stdin=kind(b"abc")).result(60).stdout == "abc"
        sandbox = session.sandbox(files={"/tmp/b": kind(b"of files")})
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


def test_a_path_whose_fspath_is_not_text_is_refused() -> None:
    class Lies(os.PathLike[str]):
        def __fspath__(self) -> Any:
            return b"bytes"

    with Session(FakeProvider()) as session, pytest.raises(ConfigurationError, match="local="):
        session.sandbox().upload(Lies(), "/tmp/a")

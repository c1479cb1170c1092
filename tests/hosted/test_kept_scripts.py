"""The script of the kept shells, under each shell that an image may have as its `sh`."""

import os
import secrets
import selectors
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from sandboxkit.providers._hosted.command import wrap
from sandboxkit.providers._hosted.kept import orders
from sandboxkit.providers._hosted.kept.channel import Channel
from sandboxkit.providers._hosted.output import MarkedStream
from sandboxkit.types import Command

SHELLS = [["dash"], ["bash"], *([["busybox", "sh"]] if shutil.which("busybox") else [])]


class Shell:
    """One that serves on pipes."""

    def __init__(self, argv: list[str], *, apart: bool) -> None:
        self.process = subprocess.Popen(
            [*argv, "-c", orders.serve(window=4, piece=16384, apart=apart)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            bufsize=0,
        )
        self._outputs = selectors.DefaultSelector()
        for name, stream in (("stdout", self.process.stdout), ("stderr", self.process.stderr)):
            assert stream is not None
            self._outputs.register(stream, selectors.EVENT_READ, name)
        self.words: list[bytes] = []

    def run(self, command: Command, data: bytes = b"") -> tuple[int | None, bytes, bytes]:
        """The status and the outputs of a command, which nobody holds any more."""
        mark = secrets.token_hex(16)
        has_input = command.stdin is not None
        self.tell(orders.apart(wrap(command, mark, "test"), mark, has_input=has_input))
        if has_input:
            self.tell(b"i %d\n" % len(data) + data + b"i 0\n")
        channels = {"stdout": Channel(mark), "stderr": Channel(mark, "stderr")}
        streams = {"stdout": MarkedStream(mark), "stderr": MarkedStream(mark)}
        got = {"stdout": b"", "stderr": b""}
        self.words = []
        while self.words.count(b"x") < 2:
            for key, _ in self._outputs.select(30):
                read = os.read(key.fd, 1 << 16)
                assert read, "the shell has ended"
                for kind, piece in channels[key.data].feed(read):
                    if kind == "record":
                        self.words.append(piece)
                        if piece in (b"o", b"r"):
                            self.tell(piece + b"\n")
                    else:
                        got[kind] += streams[kind].feed(piece)
        assert streams["stdout"].status == streams["stderr"].status
        return streams["stdout"].status, got["stdout"], got["stderr"]

    def tell(self, data: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(data)

    def end(self) -> None:
        """It ends when it is told to, and leaves nothing."""
        pipes = Path(os.readlink(f"/proc/{self.process.pid}/fd/5")).parent
        assert pipes.is_dir()
        self.tell(b"q\n")
        assert self.process.wait(10) == 0
        assert not pipes.exists()
        self._outputs.close()


@pytest.fixture(params=[False, True], ids=["on one output", "apart"])
def apart(request: pytest.FixtureRequest) -> bool:
    """Whether the standard error has an output of its own."""
    return bool(request.param)


@pytest.fixture(params=SHELLS, ids=" ".join)
def shell(request: pytest.FixtureRequest, apart: bool) -> Iterator[Shell]:
    """One that has run a command."""
    shell = Shell(request.param, apart=apart)
    with shell.process:
        assert shell.run(command("true")) == (0, b"", b"")
        yield shell
        shell.end()


def command(*argv: str, **options: object) -> Command:
    return Command(argv, cwd="/tmp", **options)  # type: ignore[arg-type] # what each test gives


def test_commands_one_after_the_other(shell: Shell) -> None:
    script = "echo out; echo err >&2; exit 3"
    for _ in range(3):
        assert shell.run(command("echo", "hello")) == (0, b"hello\n", b"")
        assert shell.run(command("sh", "-c", script)) == (3, b"out\n", b"err\n")
    status, _, said = shell.run(command("nothere"))
    assert status == 127
    assert b"not found" in said


@pytest.mark.parametrize("apart", [True])  # on one, only a terminal keeps long pieces together
def test_much_output_waits_for_words(shell: Shell, apart: bool) -> None:
    script = "head -c 300000 /dev/zero & head -c 200000 /dev/zero >&2; wait"
    assert shell.run(command("sh", "-c", script)) == (0, bytes(300_000), bytes(200_000))
    assert shell.words.count(b"o") >= 4
    assert shell.words.count(b"r") >= 2


def test_variables_and_input(shell: Shell) -> None:
    env = {"A": "x'y\nz\\ $B"}
    done = shell.run(command("sh", "-c", 'printf %s "$A"; cat', env=env, stdin=True), b"in\0\n")
    assert done == (0, env["A"].encode() + b"in\0\n", b"")

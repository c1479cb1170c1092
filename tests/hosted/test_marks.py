"""The end of a wrapped command's output, as its shell says it and as we read it."""

import subprocess

import pytest

from sandboxkit.providers._hosted import scripts
from sandboxkit.providers._hosted.kept.channel import Channel
from sandboxkit.providers._hosted.output import MarkedStream

MARK = "0123456789abcdef" * 2


def printed(*argv: str) -> tuple[bytes, bytes]:
    """What a wrapped command writes to its two outputs."""
    wrapped = ["sh", "-c", scripts.RUN, "sh", MARK, "0", "0", "/", *argv]
    done = subprocess.run(wrapped, capture_output=True, timeout=30, check=True)
    return done.stdout, done.stderr


@pytest.mark.parametrize("output", ["", "text", "\036", f"\036{MARK}", "7;"])
def test_the_end_is_known_at_once(output: str) -> None:
    for said in printed("sh", "-c", 'printf %s "$1"; printf %s "$1" >&2; exit 3', "sh", output):
        channel, stream, got = Channel(MARK), MarkedStream(MARK), b""
        # No byte of it may be the beginning of a record: who holds the output may be long silent.
        for _, piece in channel.feed(said):
            got += stream.feed(piece)
        assert (stream.status, got) == (3, output.encode())
        assert channel.held == b""


def test_it_may_come_in_any_pieces() -> None:
    said, _ = printed("echo", "hello")
    for size in range(1, len(said)):
        stream = MarkedStream(MARK)
        got = b"".join(stream.feed(said[at : at + size]) for at in range(0, len(said), size))
        assert (stream.status, got) == (0, b"hello\n")

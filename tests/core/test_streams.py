"""Output as it is kept and as it is read live: exact, within its limit, in lines of any length."""

import json
import random
from pathlib import Path

import pytest

from sandboxkit import Operation
from sandboxkit._calls._streams import LINE_LIMIT, OutputStream, Pieces

LINES: list[tuple[str, list[str]]] = json.loads(Path(__file__).with_name("lines.json").read_text())
"""Texts, and their lines where one has four characters at most."""


def fed(limit: int | None, *chunks: bytes) -> OutputStream:
    """A stream that has been given these chunks, and has ended."""
    stream = OutputStream(limit)

    async def feed() -> None:
        for chunk in chunks:
            await stream._feed(chunk)
        stream._end()

    Operation(feed()).result(60)
    return stream


def cut(data: bytes, largest: int, seed: int) -> list[bytes]:
    """The data in random chunks."""
    chance, chunks, at = random.Random(seed), [], 0
    while at < len(data):
        size = chance.randint(1, largest)
        chunks.append(data[at : at + size])
        at += size
    return chunks


@pytest.mark.parametrize("limit", [1, 2, 3, 10, 1_000, 99_999, 100_000, 100_001, 300_000, None])
@pytest.mark.parametrize("largest", [1, 700, 90_000, 200_000])
def test_output_over_the_limit_keeps_its_head_and_tail(limit: int | None, largest: int) -> None:
    data = random.Random(7).randbytes(100_000)
    stream = fed(limit, *cut(data, largest, seed=largest))
    if limit is None or limit >= len(data):
        assert (stream._value(), stream.truncated) == (data, False)
        return
    tail = limit // 2
    expected = data[: limit - tail] + (data[-tail:] if tail else b"")
    assert (stream._value(), stream.truncated) == (expected, True)
    assert b"".join(stream.bytes()) == expected


@pytest.mark.parametrize(("text", "expected"), LINES)
@pytest.mark.parametrize("largest", [1, 2, 100])
def test_a_line_over_the_maximum_is_cut(text: str, expected: list[str], largest: int) -> None:
    assert list(fed(None, *cut(text.encode(), largest, seed=1)).lines(max_length=4)) == expected


def test_a_line_without_an_end_is_never_held_whole() -> None:
    found = list(fed(None, *[b"x" * 65_536] * 64).lines())
    assert [len(each) for each in found] == [LINE_LIMIT] * 4


def test_a_flood_of_single_bytes_is_kept_in_few_objects() -> None:
    pieces = Pieces()
    for _ in range(1_000_000):
        pieces.append(b"x")
    assert pieces.size == 1_000_000
    assert len(list(pieces)) < 32
    taken = 0
    while piece := pieces.popleft():
        taken += len(piece)
    assert (taken, pieces.size) == (1_000_000, 0)


def test_large_and_small_pieces_keep_their_order() -> None:
    data = random.Random(3).randbytes(3_000_000)
    pieces, out = Pieces(), bytearray()
    chance = random.Random(4)
    for chunk in cut(data, 150_000, seed=5) + cut(data, 300, seed=6):
        pieces.append(chunk)
        if chance.random() < 0.4:
            out += pieces.popleft()
    while piece := pieces.popleft():
        out += piece
    assert out == data * 2

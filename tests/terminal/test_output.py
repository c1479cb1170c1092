"""Output as it is kept and shown: marks taken out, bounds kept, drawings undone."""

import time

import pytest

from sandboxkit.terminal import plain
from sandboxkit.terminal._unread import UnreadOutput

MARK = b"\x1b]m;"


@pytest.mark.parametrize("size", [1, 2, 3, 7, 100])
def test_split_markers_are_removed_from_output(size: int) -> None:
    text = b"a\x1b]m\x1b]m;12.3\ab\x1b]\x1b[1m" + MARK + b"x" * 80 + b"\x1b]m;12.4\ac\x1b]m;"
    unread = UnreadOutput(1000, MARK)
    for at in range(0, len(text), size):
        unread.feed(text[at : at + size])
    assert unread.marked(b"12.3")
    assert unread.marked(b"12.4")
    unread.finish()
    assert unread.take() == (b"a\x1b]mb\x1b]\x1b[1m" + MARK + b"x" * 80 + b"c\x1b]m;", False)


def test_a_marker_counts_once() -> None:
    unread = UnreadOutput(1000, MARK)
    unread.feed(MARK + b"12.1\a" + MARK + b"12.2\a")
    assert unread.marked(b"12.2")
    assert not unread.marked(b"12.1")
    assert not unread.marked(b"12.2")
    unread.feed(MARK + b"12.1\a")
    assert unread.marked(b"12.1")


def test_output_over_the_limit_drops_its_middle() -> None:
    unread = UnreadOutput(10, MARK)
    for number in range(1000):
        unread.feed(b"%d," % number)
    assert unread.look() == b"0,1,2,,999,"[:5] + b",999,"
    assert unread.take(4) == (b"0,1,", True)
    assert unread.take() == (b"2,999,", True)
    assert unread.take() == (b"", False)


@pytest.mark.parametrize(
    ("drawn", "read"),
    [
        ("\x1b[1;31mred\x1b[m\x1b]0;title\a\x1b]8;;http://x\x1b\\link", "redlink"),
        ("\x1b(B\x1b=\x1b7a\x1b[?1049hb\x1b[2Jc\x1bM", "abc"),
        (" 10%\r 50%\r100%\r\nnext\r\n", "100%\nnext\n"),
        ("hidden\rshown \nab\b\bc\n", "shown \ncb\n"),
        ("bell\a nul\0 tab\t.", "bell nul tab\t."),
        ("cut \x1b[31", "cut "),
    ],
)
def test_control_sequences_are_rendered_as_text(drawn: str, read: str) -> None:
    assert plain(drawn) == read


@pytest.mark.parametrize("part", ["\x1bP", "\x1b]", "\x1b[", "x\r", "\b", "\x1b]a\x1b"])
def test_hostile_control_sequences_take_linear_time(part: str) -> None:
    begun = time.process_time()
    plain(part * 100_000)
    assert time.process_time() - begun < 10  # a quadratic one takes hours


@pytest.mark.parametrize("part", [b"x", MARK, MARK + b"1.1\a", MARK[:-1]])
def test_hostile_output_takes_linear_time(part: bytes) -> None:
    begun = time.process_time()
    unread = UnreadOutput(1 << 20, MARK)
    for _ in range(4):
        unread.feed(part * 60_000)
    unread.take()
    assert time.process_time() - begun < 10

"""`ls`, `cp`, `logs`, `stop` and `cleanup` on sandboxes of other processes."""

import random
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from sandboxkit.cli.logs import last_lines, since
from tests.cli.conftest import Cli, Open, following


@pytest.mark.parametrize("cols", [120, 64])
def test_ls_on_a_terminal_keeps_words_whole(
    terminal: Open, detached: str, tag: str, cols: int
) -> None:
    window = terminal("ls", "--tag", tag, cols=cols)
    assert window.exit_code() == 0
    shown = re.sub(r"\x1b\[[\d;]*m", "", window.screen.decode())
    assert "─" in shown
    lines = shown.splitlines()
    assert max(map(len, lines)) <= cols
    assert any(detached in line for line in lines)
    assert tag in lines[2 if cols == 64 else 1], "on a narrow one below the id"


def test_a_long_copy_says_how_far_it_is(cli: Cli, terminal: Open, detached: str) -> None:
    window = terminal("cp", "-", f"{detached}:/workspace/typed")
    typed = 0
    while b"copied " not in window.screen:
        window.type("x\n")
        typed += 1
        window.read(0.1)
    window.type("\x04")
    assert window.exit_code() == 0
    assert cli("exec", detached, "cat", "typed").stdout == "x\n" * typed


WAITS = Path(__file__).with_name("waits.txt").read_text()


def shown_below(process: Any, number: int, there: bool) -> str:
    """Read lists until a line names the process, or until a list ends without such a line."""
    named = ""
    for line in process.stdout:
        if line.startswith(f"process {number}: "):
            named = line
        elif " sandboxes, " in line:
            if bool(named) is there:
                return named
            named = ""
    raise AssertionError("the program has ended")


@pytest.mark.parametrize("killed", [False, True])
def test_top_shows_the_processes_that_wait_for_room_and_why(
    tag: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, killed: bool
) -> None:
    monkeypatch.setenv("SANDBOXKIT_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.setenv("TMPDIR", str(tmp_path))  # the killed process leaves its sandboxes' folders
    with (
        subprocess.Popen(
            [sys.executable, "-c", WAITS], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        ) as waiter,
        following("top", "-p", "local", "--tag", tag, "--interval", "0.2s") as process,
    ):
        text = shown_below(process, waiter.pid, True)
        assert "1 sandboxes wait for room" in text
        assert "max_concurrency=1" in text
        if killed:
            waiter.kill()
        else:
            assert waiter.stdin is not None
            waiter.stdin.write("go on\n")
            waiter.stdin.flush()
        shown_below(process, waiter.pid, False)
        assert list((tmp_path / "state").glob("waiting-*")) == []


def test_a_later_look_at_the_newest_output_shows_what_is_new() -> None:
    data = random.Random(0).randbytes(20_000)
    for start, end, later, last in (
        (0, 0, 0, 9),
        (0, 9000, 0, 9000),
        (0, 9000, 0, 12_000),
        (0, 9000, 100, 9100),
        (0, 9000, 4900, 18_000),
    ):
        assert since(data[start:end], data[later:last]) == data[end:last]
    assert since(data[:9000], data[8999:]) is None


@pytest.mark.parametrize(
    ("number", "shown"), [(0, b""), (1, b"c"), (2, b"\nc"), (3, b"b\n\nc"), (9, b"a\nb\n\nc")]
)
def test_the_last_lines_are_complete(number: int, shown: bytes) -> None:
    assert last_lines(b"a\nb\n\nc", number) == shown
    assert last_lines(b"a\nb\n\nc\n", number) == (shown + b"\n" if number else b"")

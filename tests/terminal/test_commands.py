"""Commands in a terminal: what they print, how it is kept and shown, what their status is, and what they leave."""

import json
import time
from pathlib import Path
from typing import Any

import pytest

from sandboxkit import Sandbox, TerminalError
from sandboxkit.terminal import Terminal, TerminalResult, plain
from sandboxkit.terminal._shell import UnreadOutput

# Any: what JSON is.
CASES: dict[str, Any] = json.loads(Path(__file__).with_name("cases.json").read_text())

SECONDS = 60.0
EXACT = CASES["exact"]


def ran(terminal: Terminal, command: str) -> TerminalResult:
    return terminal.run(command, timeout=SECONDS).result()


def test_the_output_is_exactly_what_was_printed(terminal: Terminal) -> None:
    for command, output in EXACT:
        result = ran(terminal, command)
        assert (result.output, result.returncode, result.ended) == (output, 0, False), command
    assert ran(terminal, "echo 'hi!!'").output == "hi!!\n"  # no history
    drawn = ran(terminal, r"printf '\377\0\033[31mred\033[0m\033[?1049h'")
    assert drawn.output_bytes == b"\xff\0\x1b[31mred\x1b[0m\x1b[?1049h"
    assert drawn.plain == "\ufffdred"


def test_the_status_is_that_of_the_command(terminal: Terminal) -> None:
    statuses = CASES["statuses"]
    assert {command: ran(terminal, command).returncode for command in statuses} == statuses
    ran(terminal, "set +e; (exit 9)")
    assert ran(terminal, "echo $?; (exit $?)").output == "9\n"


def test_changes_of_the_shell_persist(terminal: Terminal, box: Sandbox) -> None:
    ran(terminal, "x='a  b'; e() { echo \"<$x>\"; }; shopt -s extglob; alias hey='echo hey'")
    ran(terminal, "mkdir -p /tmp/there; cd /tmp/there; umask 027; trap 'echo bye' USR1")
    kept = ran(terminal, "e; hey; pwd; umask; echo !(x); kill -USR1 $$; declare y=5")
    assert kept.output == "<a  b>\nhey\n/tmp/there\n0027\n!(x)\nbye\n"
    assert ran(terminal, "echo $y").output == "5\n"
    with box.terminal(cwd="/tmp", env={"x": "theirs"}) as other:
        assert ran(other, "pwd; echo $x").output == "/tmp\ntheirs\n"
    ran(terminal, "rmdir /tmp/there")
    assert ran(terminal, "echo alive; cd /tmp").output == "alive\n"


def test_a_virtual_environment_can_be_entered_and_left(terminal: Terminal) -> None:
    before = ran(terminal, "cd /tmp; python3 -m venv --without-pip v; command -v python3").output
    ran(terminal, ". v/bin/activate")
    assert ran(terminal, "command -v python3; python3 -c 'print(1)'").output == (
        "/tmp/v/bin/python3\n1\n"
    )
    assert ran(terminal, "deactivate; command -v python3").output == before


def test_a_command_that_bash_cannot_parse_is_not_run(terminal: Terminal) -> None:
    for wrong in ("if then", "echo 'a", "(a", "echo $(", "x() {"):
        refused = ran(terminal, f"touch /tmp/was-run; {wrong}")
        assert refused.returncode == 2
        assert "syntax error" in refused.output or "unexpected EOF" in refused.output
    assert ran(terminal, "test -e /tmp/was-run").returncode == 1


def test_errors_that_end_scripts_keep_the_shell(terminal: Terminal) -> None:
    assert "unbound" in ran(terminal, "set -u; echo $nothing; echo on").output
    assert ran(terminal, "set +u; echo ${nothing:?bad}").output == "bash: nothing: bad\n"
    assert ran(terminal, "exec /no/such").returncode == 127
    assert ran(terminal, "PROMPT_COMMAND=; PS1='> '; stty echo raw; echo on").output == "on\n"
    assert ran(terminal, "echo on").output == "on\n"


def test_commands_and_output_of_any_size(terminal: Terminal) -> None:
    assert ran(terminal, f"echo {'x' * 300_000} | wc -c").output.strip() == "300001"
    much = ran(terminal, "seq 400000; false")
    assert much.truncated
    assert much.returncode == 1
    assert len(much.output_bytes) == 1 << 20
    assert much.output.startswith("1\n2\n")
    assert much.output.endswith("399999\n400000\n")
    assert ran(terminal, "echo next") == TerminalResult(b"next\n", 0)


def test_jobs_continue_between_commands(terminal: Terminal) -> None:
    assert ran(terminal, "sleep 71 & (sleep 72 &)").output.startswith("[1] ")
    assert "sleep 71" in ran(terminal, "jobs").output
    assert "Terminated" in ran(terminal, "kill %1; wait %1").output


def test_a_shell_may_cover_or_replace_the_shell(terminal: Terminal) -> None:
    ran(terminal, "x=outer")
    assert ran(terminal, "bash").returncode == 0
    assert ran(terminal, "echo [$x]; x=inner").output == "[]\n"
    assert ran(terminal, "exit 4").returncode == 4
    assert ran(terminal, "echo $x").output == "outer\n"
    assert ran(terminal, "exec bash --norc").returncode == 0
    assert ran(terminal, "echo [$x]").output == "[]\n"
    # One on another terminal is none of ours.
    other = "import pty; pty.spawn(['bash', '--norc', '-ic', 'echo there'])"
    assert "there" in ran(terminal, f'python3 -c "{other}"; echo here').output


def test_one_command_at_a_time(terminal: Terminal) -> None:
    assert terminal.run("sleep 73", timeout=0.1).result().running
    with pytest.raises(TerminalError, match="a command runs") as refused:
        terminal.run("true").result()
    assert not refused.value.ended


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


@pytest.mark.parametrize(("drawn", "read"), CASES["drawn"])
def test_control_sequences_are_rendered_as_text(drawn: str, read: str) -> None:
    assert plain(drawn) == read


@pytest.mark.parametrize("part", CASES["hostile"])
def test_hostile_output_takes_linear_time(part: str) -> None:
    begun = time.process_time()
    plain(part * 100_000)
    unread = UnreadOutput(1 << 20, MARK)
    for _ in range(4):
        unread.feed(part.encode() * 60_000)
    unread.take()
    assert time.process_time() - begun < 10  # a quadratic one takes hours

"""`sandboxkit shell` and `run -t`: a real terminal, given back as it was."""

import signal

import pytest

from tests.cli.conftest import Cli, Open


def test_a_shell_has_our_size_follows_it_and_returns_its_status(terminal: Open) -> None:
    window = terminal("shell", rows=31, cols=97)
    window.type("stty size\n")
    window.expect("31 97")
    window.resize(40, 120)
    # The new size may come later than what is typed.
    window.type('until [ "$(stty size)" = "40 $((119 + 1))" ]; do sleep 0.1; done; stty size\n')
    window.expect("40 120")
    window.type("exit 7\n")
    assert window.exit_code() == 7
    assert window.restored()


def test_a_shell_enters_a_running_sandbox(cli: Cli, terminal: Open, detached: str) -> None:
    window = terminal("shell", "-e", "A=1", "-w", "/tmp", detached)
    window.type("echo $A-$PWD-$TERM > /tmp/seen; exit\n")
    assert window.exit_code() == 0
    assert cli("exec", detached, "cat", "/tmp/seen").stdout == "1-/tmp-xterm\n"


def test_ctrl_c_goes_to_the_program_inside(terminal: Open) -> None:
    window = terminal("shell")
    # Between its commands the shell itself has the terminal: the program says that it has it now.
    window.type("sh -c 'echo ready-$((1 + 1)); exec sleep 60'\n")
    window.expect("ready-2")
    window.type("\x03")
    window.type("echo still-$((1 + 2))\n")
    window.expect("still-3")
    window.type("exit 0\n")
    assert window.exit_code() == 0


def test_run_with_a_terminal_passes_it_raw(terminal: Open) -> None:
    window = terminal("run", "-t", "sh", "-c", r"test -t 0 && printf 'red\033[31m\n'; exit 5")
    window.expect("red\x1b[31m")
    assert window.exit_code() == 5
    assert window.restored()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_gives_the_terminal_back(number: signal.Signals, terminal: Open) -> None:
    window = terminal("shell")
    window.type("echo ready-$((1 + 1))\n")
    window.expect("ready-2")
    window.process.send_signal(number)
    assert window.exit_code() == 128 + number
    assert window.restored()


def test_a_failed_start_gives_the_terminal_back(terminal: Open) -> None:
    window = terminal("shell", "--image", "/no/such/root")
    assert window.exit_code() in (2, 125)
    assert b"sandboxkit: error: " in window.screen
    assert b"Traceback" not in window.screen
    assert window.restored()

"""The command on a terminal: it is used as a person does, and given back as it was."""

import tomllib
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Cli, Open

SESSIONS = tomllib.loads((Path(__file__).parent / "terminals.toml").read_text())["session"]


@pytest.mark.parametrize("case", SESSIONS, ids=lambda case: case["name"])
def test_a_session_on_a_terminal_goes_as_written(terminal: Open, case: dict[str, Any]) -> None:
    rows, cols = case.get("size", (24, 80))
    window = terminal(*case["args"], rows=rows, cols=cols)
    for verb, *given in case.get("steps", ()):
        getattr(window, verb)(*given)
    assert window.exit_code() in case.get("exit", [0])
    screen = window.screen.decode()
    assert case.get("has", "") in screen
    assert "Traceback" not in screen
    assert window.restored()


def test_a_shell_enters_a_running_sandbox(cli: Cli, terminal: Open, detached: str) -> None:
    window = terminal("shell", "-e", "A=1", "-w", "/tmp", detached)
    window.type("echo $A-$PWD-$TERM > /tmp/seen; exit\n")
    assert window.exit_code() == 0
    assert cli("exec", detached, "cat", "/tmp/seen").stdout == "1-/tmp-xterm\n"

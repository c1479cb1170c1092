"""The command on a terminal, used as a person does and given back as it was; its help and completion."""

import argparse
import re
import socket
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from sandboxkit import cli as command
from tests.cli.conftest import Cli, Open, environment

TABLES = tomllib.loads((Path(__file__).parent / "terminals.toml").read_text())
SESSIONS, MISTAKES = TABLES["session"], TABLES["mistake"]


@pytest.mark.parametrize("case", SESSIONS, ids=lambda case: case["name"])
def test_a_session_on_a_terminal_goes_as_it_should(terminal: Open, case: dict[str, Any]) -> None:
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


def test_a_provider_can_be_named_before_or_after_the_verb() -> None:
    parser = command.build_parser()
    assert parser.parse_args(["-p", "docker", "ls"]).provider == "docker"
    assert parser.parse_args(["ls", "-p", "docker"]).provider == "docker"
    assert parser.parse_args(["-p", "local", "ls", "-p", "docker"]).provider == "docker"
    assert parser.parse_args(["ls"]).provider is None


def test_doctor_fits_80_columns(terminal: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    window = terminal("doctor", "-p", "local", cols=80)
    assert window.exit_code() == 0
    shown = re.sub(r"\x1b\[(?!3)[\d;]*m", "", window.screen.decode())
    assert "\x1b" not in shown  # bold and dim may be, colours not
    lines = [line.rstrip() for line in shown.splitlines()]
    assert max(map(len, lines)) <= 80
    assert "checking local ..." in lines  # and erased
    lines = [line for line in lines if line and "checking" not in line]
    assert lines[0].split() == ["local", "*", "yes"]
    assert lines[1].startswith("  isolation  ")


def parsers() -> dict[str, argparse.ArgumentParser]:
    """Those of the verbs, by name."""
    (verbs,) = command.build_parser()._subparsers._group_actions  # type: ignore[union-attr]
    assert isinstance(verbs.choices, dict)
    return verbs.choices


def test_help_fits_80_columns_and_breaks_no_word(monkeypatch: pytest.MonkeyPatch) -> None:
    def texts(columns: int) -> dict[str, str]:
        monkeypatch.setenv("COLUMNS", str(columns))
        known = {"": command.build_parser(), **parsers()}
        return {name: parser.format_help() for name, parser in known.items()}

    wide = texts(500)
    for verb, text in texts(80).items():
        assert f"    {verb} " in wide[""], "the list of all names every verb"
        assert [line for line in text.splitlines() if len(line) > 80] == [], verb
        assert set(text.split()) == set(wide[verb].split()), verb


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts_know_verbs_and_options(shell: str, cli: Cli) -> None:
    script = cli("completion", shell).stdout
    assert [verb for verb in parsers() if verb not in script] == []
    assert "older-than" in script


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_on_the_command_line_is_answered_in_words(name: str, cli: Cli) -> None:
    row = MISTAKES[name]
    done = cli(*row["args"])
    assert done.returncode == row["exit"], done.stderr
    assert row["says"] in " ".join(done.stderr.split())
    assert "Traceback" not in done.stderr


def test_a_taken_port_is_answered_in_words(cli: Cli) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        done = cli("serve", "--port", str(taken.getsockname()[1]))
    assert done.returncode == 2
    assert "cannot listen on 127.0.0.1" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_paused_sandbox_is_resumed_by_what_the_error_says(cli: Cli, detached: str) -> None:
    cli("pause", detached)
    said = cli("exec", detached, "true").stderr
    assert cli(*re.findall(r"sandboxkit (resume) (\S+)", said)[0]).returncode == 0
    assert cli("exec", detached, "true").returncode == 0


def test_bash_completes_parts_of_verbs_and_ids(cli: Cli, detached: str) -> None:
    script = cli("completion", "bash").stdout
    for verb, word in (("snapshots", "create"), ("exec", detached), ("snapshots create", detached)):
        place = len(verb.split()) + 1
        words = f"COMP_WORDS=(sandboxkit {verb} ''); COMP_CWORD={place}; _sandboxkit; echo ${{COMPREPLY[@]}}"
        program = f'{script}\nsandboxkit() {{ {sys.executable} -m sandboxkit "$@"; }}\n{words}'
        done = subprocess.run(
            ["bash", "-c", program], capture_output=True, text=True, env=environment()
        )
        assert word in done.stdout.split(), done.stderr

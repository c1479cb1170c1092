"""Errors are one line with a remedy; help, doctor and completion say what there is."""

import json
import re
import subprocess
import sys

import pytest

import sandboxkit
from sandboxkit import cli as command
from tests.cli.conftest import Cli, Open

VERBS = (
    "demo",
    "run",
    "exec",
    "shell",
    "ls",
    "inspect",
    "cp",
    "logs",
    "stop",
    "cleanup",
    "volumes",
    "doctor",
    "top",
    "usage",
    "grpo",
    "tasks",
)


def test_help_names_every_verb_and_the_exit_codes(cli: Cli) -> None:
    text = cli("--help").stdout
    assert all(f"    {verb} " in text for verb in VERBS)
    assert "exit codes:" in text
    assert "125" in text


def test_a_provider_can_be_named_before_or_after_the_verb() -> None:
    parser = command.build_parser()
    assert parser.parse_args(["-p", "docker", "ls"]).provider == "docker"
    assert parser.parse_args(["ls", "-p", "docker"]).provider == "docker"
    assert parser.parse_args(["-p", "local", "ls", "-p", "docker"]).provider == "docker"
    assert parser.parse_args(["ls"]).provider is None


def test_doctor_describes_every_provider(cli: Cli) -> None:
    result = cli("doctor", "--json")
    assert result.returncode == 0, result.stdout
    found = json.loads(result.stdout)
    assert found["local"]["available"] is True
    assert found["local"]["isolation"]
    assert [
        name for name, each in found.items() if not each["available"] | bool(each["remedy"])
    ] == []
    assert "local *" in cli("doctor").stdout


def test_doctor_fits_a_terminal_of_80_columns(
    terminal: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_help_fits_80_columns_and_breaks_no_word(monkeypatch: pytest.MonkeyPatch) -> None:
    def texts(columns: int) -> dict[str, str]:
        monkeypatch.setenv("COLUMNS", str(columns))
        (verbs,) = command.build_parser()._subparsers._group_actions  # type: ignore[union-attr]
        assert isinstance(verbs.choices, dict)
        parsers = {"": command.build_parser(), **verbs.choices}
        return {name: parser.format_help() for name, parser in parsers.items()}

    wide = texts(500)
    for verb, text in texts(80).items():
        assert [line for line in text.splitlines() if len(line) > 80] == [], verb
        assert set(text.split()) == set(wide[verb].split()), verb


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts_know_verbs_and_options(shell: str, cli: Cli) -> None:
    script = cli("completion", shell).stdout
    assert all(verb in script for verb in VERBS)
    assert "older-than" in script


def test_bash_completes_verbs_options_and_providers(cli: Cli) -> None:
    script = cli("completion", "bash").stdout

    def complete(*words: str) -> list[str]:
        line = " ".join(f"'{word}'" for word in words)
        ask = f'COMP_WORDS=({line}); COMP_CWORD={len(words) - 1}; _sandboxkit; printf "%s\\n" "${{COMPREPLY[@]}}"'
        result = subprocess.run(
            ["bash", "-c", f"{script}\n{ask}"], capture_output=True, text=True, check=True
        )
        return result.stdout.split()

    assert complete("sandboxkit", "cl") == ["cleanup"]
    assert complete("sandboxkit", "cleanup", "--or") == ["--orphans"]
    assert complete("sandboxkit", "--provider", "lo") == ["local"]


def test_without_rich_the_message_names_the_extra(cli: Cli) -> None:
    code = "import sys; sys.modules['rich'] = None; from sandboxkit.cli import main; sys.exit(main(['doctor']))"
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, check=False, text=True
    )
    assert result.returncode == 2
    assert "[cli]" in result.stderr
    assert "Traceback" not in result.stderr


def test_version_is_the_packages(cli: Cli) -> None:
    assert cli("--version").stdout == f"sandboxkit {sandboxkit.__version__}\n"

"""An option is declared once: flags, fields, signatures, help texts, errors and documents come from the table."""

import inspect
import os
import pydoc
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from sandboxkit import ConfigurationError, SandboxSpec, Session, _spec
from sandboxkit.cli import build_parser
from sandboxkit.options import ALL_OPTIONS, CONFIG_OPTIONS, ConfigOptions, Option, SpecOptions
from tests.docker_here import require_docker

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = tomllib.loads((Path(__file__).parent / "programs.toml").read_text())
NAMES = [option.name for option in ALL_OPTIONS]
DEFAULTS = {option.name: option.default for option in ALL_OPTIONS}
MEANINGS = {option.name: option.meaning for option in ALL_OPTIONS}
FLAGS = [option for option in ALL_OPTIONS if option.flag]
Python = Callable[..., "subprocess.CompletedProcess[str]"]


def run(argv: list[str], **options: Any) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(argv, capture_output=True, text=True, timeout=170, **options)


def test_the_table_the_keywords_and_the_spec_have_the_same_options_and_defaults() -> None:
    # `network=Egress(...)` becomes network="none" with egress=Egress(...) or native_rules=....
    declared = [field.name for field in fields(SandboxSpec)]
    assert [*NAMES, "egress", "native_rules"] == declared
    assert [option.name for option in CONFIG_OPTIONS] == list(ConfigOptions.__annotations__)
    assert {name: getattr(SandboxSpec(), name) for name in NAMES} == DEFAULTS


@pytest.mark.parametrize("option", ALL_OPTIONS, ids=lambda option: option.name)
def test_an_option_takes_its_default_and_examples_and_errors_name_it(option: Option) -> None:
    assert option.check(option.name, option.default) == option.default
    assert option.examples
    for example in option.examples:
        option.check(option.name, example)
    with pytest.raises(ConfigurationError, match=option.name.removesuffix("s")):
        _spec.build(SandboxSpec(), {option.name: object()})


@pytest.mark.parametrize("option", FLAGS, ids=lambda option: option.name)
def test_a_flag_of_the_command_line_gives_the_option_and_says_what_it_means(option: Option) -> None:
    (verbs,) = build_parser()._subparsers._group_actions  # type: ignore[union-attr]
    assert isinstance(verbs.choices, dict)
    (action,) = [each for each in verbs.choices["run"]._actions if each.dest == option.name]
    assert re.findall(r"--?[a-z-]+", option.flag) == action.option_strings
    first_words = option.meaning.partition(".")[0].lower()
    assert action.help is not None
    assert action.help.lower().startswith(first_words)


@pytest.mark.parametrize("option", CONFIG_OPTIONS, ids=lambda option: option.name)
def test_inspect_passes_each_option_of_plain_data_on(option: Option) -> None:
    # Here, because each process of the suite imports this file and Inspect takes four seconds.
    from sandboxkit.integrations.inspect import SandboxkitConfig

    value = option.examples[0]
    config = SandboxkitConfig.model_validate({option.name: value})
    assert config.options() == {option.name: value}
    assert SandboxkitConfig.model_validate_json(config.model_dump_json()) == config
    assert SandboxkitConfig.model_fields[option.name].description == option.meaning


@pytest.mark.parametrize("option", CONFIG_OPTIONS, ids=lambda option: option.name)
def test_the_openai_agents_sdk_stores_each_option_of_plain_data(option: Option) -> None:
    agents = pytest.importorskip("sandboxkit.integrations.openai_agents")
    value = option.examples[0]
    given = agents.SandboxkitClientOptions.model_validate({option.name: value})
    assert given.options() == {option.name: value}
    assert agents.SandboxkitClientOptions.parse(given.model_dump(mode="json")) == given
    for name in ("secrets", "memroy_mb"):
        with pytest.raises(ValueError, match=name):
            agents.SandboxkitClientOptions.model_validate({name: 1})


def test_type_checkers_know_the_options_everywhere(tmp_path: Path) -> None:
    pytest.importorskip("pyright")
    use = tmp_path / "use.py"
    use.write_text(PROGRAMS["use"])
    pyright = [sys.executable, "-m", "pyright", "--pythonpath", sys.executable, str(use)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = run(pyright, cwd=tmp_path, env=environment)
    assert re.findall(r":(\d+):\d+ - error", done.stdout) == ["3", "4", "5", "6"], done


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the package with the option that CONTRIBUTING.md adds."""
    copy = tmp_path_factory.mktemp("copy")
    skipped = shutil.ignore_patterns("__pycache__", "tasks", "node_modules")
    for name in ("sandboxkit", "providers", "integrations", "scripts", "docs"):
        shutil.copytree(ROOT / name, copy / name, symlinks=True, ignore=skipped)
    text = (ROOT / "CONTRIBUTING.md").read_text()
    (diff,) = re.findall(r"<!-- an option -->\n```diff\n(.*?)```", text, re.DOTALL)
    # Below a repository git would apply the diff to that.
    environment = {**os.environ, "GIT_CEILING_DIRECTORIES": str(copy.parent)}
    apply = ["git", "apply", "--verbose", "-"]
    done = run(apply, cwd=copy, env=environment, input=diff)
    assert done.returncode == 0, done.stderr
    return copy


@pytest.fixture
def python(copy: Path) -> Python:
    """Runs Python with the copy."""

    environment = {**os.environ, "PYTHONPATH": str(copy), "COLUMNS": "200"}
    return lambda *args: run([sys.executable, *args], cwd=copy, env=environment)


def test_a_new_option_is_a_flag(python: Python) -> None:
    words = " ".join(python("-m", "sandboxkit", "run", "--help").stdout.split())
    assert "--hostname NAME name of the machine that commands see" in words
    assert "hostname" in python("-m", "sandboxkit", "completion", "bash").stdout
    done = python("-m", "sandboxkit", "run", "-p", "local", "--hostname", "box", "true")
    assert done.returncode == 2
    assert "'local' cannot honour hostname='box': every local sandbox is called" in done.stderr


def test_a_new_option_is_in_an_adapter_signatures_help_and_errors(python: Python) -> None:
    adapter, signature, meaning, bad, unknown = python("-c", PROGRAMS["shows"]).stdout.splitlines()
    assert adapter == "{'hostname': 'box'}"
    assert signature == "hostname: str | None = <the session's>"
    assert "Name of the machine that commands see." in meaning
    assert "hostname=1 is not valid" in bad
    assert "did you mean 'hostname'?" in unknown


def test_a_new_option_is_in_the_document(copy: Path, python: Python) -> None:
    done = python("scripts/options.py")
    assert done.returncode == 0, done.stderr
    page = (copy / "docs" / "options.md").read_text()
    declared, honoured = re.findall(r"^\| `hostname` .*$", page, re.MULTILINE)
    assert "Name of the machine that commands see." in declared
    assert declared.endswith("| `--hostname NAME` | yes |")
    note = r"^(\d+)\. .*every local sandbox is called 'sandbox'$"
    (number,) = re.findall(note, page, re.MULTILINE)
    refused = f"✗&nbsp;[{number}](#note-{number})"
    assert honoured.startswith(f"| `hostname` | {refused} | {refused} | ✓ |")


def test_docker_honours_the_new_option(python: Python) -> None:
    image = require_docker()
    command = ("-p", "docker", "--image", image, "--hostname", "box", "--", "uname", "-n")
    done = python("-m", "sandboxkit", "run", *command)
    assert (done.returncode, done.stdout) == (0, "box\n"), done.stderr


def test_each_option_says_what_it_means_and_its_default() -> None:
    assert NAMES == list(SpecOptions.__annotations__) == list(MEANINGS)
    for name, output in MEANINGS.items():
        assert "default" in output.lower(), name
        assert str(DEFAULTS[name]) in output, name


@pytest.mark.parametrize("thing", [Session, Session.sandbox, Session.run])
def test_a_signature_names_each_option(thing: Callable[..., object]) -> None:
    found = inspect.signature(thing).parameters
    assert [name for name in found if name in NAMES] == NAMES
    assert not [each for each in found.values() if each.kind is each.VAR_KEYWORD]
    defaults = {name: found[name].default for name in NAMES}
    if thing is Session:
        assert defaults == DEFAULTS
    else:
        assert {repr(each) for each in defaults.values()} == {"<the session's>"}
    assert inspect.formatannotation(found["memory_mb"].annotation) == "int | None"


@pytest.mark.parametrize("thing", [Session, Session.sandbox, SandboxSpec])
def test_help_says_what_each_option_means(thing: object) -> None:
    words = " ".join(pydoc.plain(pydoc.render_doc(thing)).replace("|", " ").split())
    for name, output in MEANINGS.items():
        assert " ".join(output.replace("|", " ").split()) in words, name


def test_help_without_docstrings_or_source_is_no_error() -> None:
    subprocess.run([sys.executable, "-OO", "-c", "import sandboxkit"], check=True, cwd=ROOT)
    code = "import linecache; linecache.getlines = lambda *_: []; import sandboxkit"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)

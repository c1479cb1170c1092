"""A test without what it needs is skipped and counted by component; a bare machine can be tried on any other."""

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.components import parsed, reason

ROOT = Path(__file__).resolve().parents[2]
TESTS = tomllib.loads(Path(__file__).with_name("skips.toml").read_text())


def run(folder: Path, *options: str, local: str = "", **env: str) -> str:
    """Run the cases, where local sandboxes cannot start for the reason `local`, and return the output."""
    (folder / "conftest.py").write_text(
        f"from tests import local_here\nlocal_here.local_problem = lambda: {local!r}\n"
    )
    (folder / "test_cases.py").write_text(TESTS["cases"])
    (folder / "test_module.py").write_text(TESTS["module"])
    command = [sys.executable, "-m", "pytest", "-q", "-c", os.devnull, "--rootdir", str(folder)]
    plugins = ("xdist.plugin", "tests.outcomes", "tests.local_here", "no:cacheprovider")
    command += [word for plugin in plugins for word in ("-p", plugin)] + list(options)
    kept = {key: value for key, value in os.environ.items() if not key.startswith("SANDBOXKIT_")}
    done = subprocess.run(
        [*command, str(folder)],
        cwd=ROOT,
        env=kept | {"PYTEST_ADDOPTS": "", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"} | env,
        capture_output=True,
        text=True,
    )
    assert done.stderr == ""
    return done.stdout


@pytest.mark.parametrize("processes", ["0", "2"])
def test_the_table_counts_each_component_and_no_other_cause(tmp_path: Path, processes: str) -> None:
    lines = run(tmp_path, "-n", processes).splitlines()
    start = next(n for n, line in enumerate(lines) if "skipped for want of" in line)
    assert lines[start + 1 : start + 5] == [
        " tests  without          how to get it",
        "     3  daemon           start it",
        "     1  framework        make it",
        "     1  no-such-program  apt-get install no-such-program",
    ]


def test_what_ci_requires_fails_without_it(tmp_path: Path) -> None:
    shown = run(tmp_path, SANDBOXKIT_REQUIRE_DOCKER="1")
    assert "5 failed, 2 skipped" in shown, shown


def test_a_start_that_fails_is_skipped_only_where_none_starts(tmp_path: Path) -> None:
    assert "1 failed" in run(tmp_path, "-k", "test_start")
    shown = run(tmp_path, "-k", "test_start", local="no local sandboxes (why): allow them")
    assert "     1  local sandboxes  allow them\n" in shown, shown


def test_only_the_form_of_components_is_counted() -> None:
    skip = reason("thing", "get it", "several\nlines: (x)")
    assert parsed(f"Skipped: {skip}") == ("thing", "get it")
    assert parsed("no thing") is None
    assert parsed("gVisor has no raw sockets: see there") is None


@pytest.mark.parametrize("user", [0, 1000])
def test_a_bare_machine_has_git_make_and_python_and_no_more(user: int) -> None:
    script = (
        'for each; do command -v "$each" >/dev/null && printf "%s " "$each"; done; echo; exit 7'
    )
    kept = [each for each in ("git", "make", "python3", "sh", "awk") if shutil.which(each)]
    names = [*kept, "docker", "runsc", "gcc", "skopeo", "newuidmap"]
    command = [str(ROOT / "scripts" / "bare.sh"), "sh", "-c", script, "sh", *names]
    if user and os.geteuid() == 0:
        command = ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups", *command]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.stdout.split(), done.returncode) == (kept, 7), done.stderr

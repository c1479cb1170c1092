"""`ls`, `cp`, `top`, `logs`, `forward` and `exec` on sandboxes of other processes, and `run`."""

import json
import random
import re
import signal
import socket
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sandboxkit import Image, Sandbox
from sandboxkit.cli import _configured
from sandboxkit.cli.logs import last_lines, since
from sandboxkit.testing.conformance.ports import _ECHO, running
from tests.cli.conftest import Cli, Open, environment, following
from tests.docker_here import require_docker
from tests.grpo.stand_ins import free_port

SECONDS = 120.0
ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


@pytest.mark.parametrize("cols", [120, 64])
def test_ls_on_a_terminal_breaks_no_id(terminal: Open, detached: str, tag: str, cols: int) -> None:
    window = terminal("ls", "--tag", tag, cols=cols)
    assert window.exit_code() == 0
    shown = re.sub(r"\x1b\[[\d;]*m", "", window.screen.decode())
    assert ("─" in shown) is (cols == 120), "a table only where there is room"
    assert max(map(len, shown.splitlines())) <= cols
    assert detached in shown
    assert tag in (shown if cols == 120 else shown.splitlines()[2]), "below the id"


@pytest.mark.parametrize("cols", [160, 80])
def test_images_on_a_terminal_have_their_steps_where_they_fit(
    terminal: Open, tag: str, cols: int
) -> None:
    key, _, value = tag.partition(":")
    image = Image().run(f"echo {value}").build("local", ttl=300, tags={key: value}).result(SECONDS)
    window = terminal("images", "ls", "--tag", tag, cols=cols)
    assert window.exit_code() == 0
    shown = window.screen.decode().splitlines()
    steps = f"FROM default; RUN echo {value}"
    assert image.id in shown[1 if cols == 160 else 2]
    assert shown[-1].endswith(f"   {steps}") is (cols == 160)
    assert (shown[-1] == f"  {steps}") is (cols == 80)
    image.delete().result(SECONDS)


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
def test_top_shows_who_waits_and_why(
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
    assert since(b"", data[:9]) == data[:9]
    for later, last in ((0, 9000), (0, 12_000), (100, 9100), (4900, 18_000)):
        assert since(data[:9000], data[later:last]) == data[9000:last]
    assert since(data[:9000], data[8999:]) is None


@pytest.mark.parametrize(
    ("number", "shown"), [(0, b""), (1, b"c"), (2, b"\nc"), (3, b"b\n\nc"), (9, b"a\nb\n\nc")]
)
def test_the_last_lines_are_complete(number: int, shown: bytes) -> None:
    assert last_lines(b"a\nb\n\nc", number) == shown
    assert last_lines(b"a\nb\n\nc\n", number) == (shown + b"\n" if number else b"")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_run_leaves_nothing(number: signal.Signals, cli: Cli, tag: str) -> None:
    script = ("sh", "-c", "echo up; sleep 60")
    with following("run", "--tag", tag, *script, stderr=subprocess.PIPE) as process:
        assert next(process.stdout) == "up\n"
        process.send_signal(number)
        assert process.wait(timeout=120) == 128 + number
        assert process.stderr.read() == ""
    assert cli("ls", "-q", "--tag", tag).stdout == ""


def test_ctrl_c_while_the_command_is_imported_prints_nothing(tmp_path: Path) -> None:
    (tmp_path / "anyio.py").write_text("import os, signal; os.kill(os.getpid(), signal.SIGINT)")
    module, _, function = PROJECT["scripts"]["sandboxkit"].partition(":")
    code = f"import sys; from {module} import {function}; sys.exit({function}())"
    done = subprocess.run(
        [sys.executable, "-c", code, "ls"],
        cwd=ROOT,
        env=environment({"PYTHONPATH": str(tmp_path)}),
        capture_output=True,
        text=True,
        timeout=SECONDS,
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_an_interrupted_exec_kills_its_command_alone(cli: Cli, detached: str) -> None:
    with following("exec", detached, "sh", "-c", "echo $$ > pid; echo up; sleep 600") as process:
        assert next(process.stdout) == "up\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=120) == 130
    script = "while kill -0 $(cat pid) 2>/dev/null; do sleep 0.1; done; echo dead"
    assert cli("exec", "--timeout", "60s", detached, "sh", "-c", script).stdout == "dead\n"


def test_a_killed_client_takes_its_sandbox_with_it(cli: Cli, tag: str) -> None:
    with following("run", "--tag", tag, "sh", "-c", "echo up; sleep 60") as process:
        assert next(process.stdout) == "up\n"
        process.kill()
        process.wait()
    deadline = time.monotonic() + 10
    state = ("--state", "running")
    while cli("ls", "-q", "--tag", tag, *state).stdout and time.monotonic() < deadline:
        pass
    cli("cleanup", "--tag", tag)
    assert cli("ls", "-q", "--tag", tag).stdout == ""


def forwarded(process: Any) -> int:
    """The port of this machine that the command prints."""
    line = process.stdout.readline()
    found = re.match(r"http://127\.0\.0\.1:(\d+) forwards to port \d+ of local-", line)
    assert found is not None, line
    return int(found[1])


def test_a_port_is_forwarded_until_ctrl_c(detached: str) -> None:
    sandbox = Sandbox.from_id(detached, provider="local").result(SECONDS)
    with running(sandbox, _ECHO) as port, following("forward", detached, str(port)) as process:
        here = forwarded(process)
        with socket.create_connection(("127.0.0.1", here), SECONDS) as client:
            client.sendall(b"hello")
            assert client.recv(5, socket.MSG_WAITALL) == b"hello"
        process.send_signal(signal.SIGINT)
        assert process.wait(SECONDS) == 130
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", here), SECONDS)


def test_it_ends_with_the_sandbox_and_takes_the_port_asked_for(cli: Cli, detached: str) -> None:
    here = free_port()
    with socket.create_server(("127.0.0.1", here)):
        refused = cli("forward", detached, f"{here}:8000")
    assert (refused.returncode, refused.stdout) == (125, "")
    assert "in use" in refused.stderr
    with following("forward", detached, f"{here}:8000") as process:
        assert forwarded(process) == here
        assert cli("stop", detached).returncode == 0
        assert process.wait(SECONDS) == 0


HOSTED = ("DAYTONA_API_KEY", "DAYTONA_JWT_TOKEN", "E2B_API_KEY", "KUBECONFIG", "MODAL_TOKEN_ID")


@pytest.fixture
def container(cli: Cli, tag: str) -> Iterator[str]:
    """The id of a detached sandbox of docker, where local is the default."""
    require_docker()
    script = "echo from-main; sleep 300"
    started = cli("run", "-p", "docker", "-d", "--lifetime", "5m", "--tag", tag, "sh", "-c", script)
    assert started.returncode == 0, started.stderr
    yield started.stdout.strip()
    cli("stop", "-p", "docker", started.stdout.strip())


def test_an_id_is_found_at_its_provider(cli: Cli, container: str, detached: str, tag: str) -> None:
    assert set(cli("ls", "-q", "--tag", tag).stdout.split()) == {container, detached}
    assert cli("exec", container, "sh", "-c", "echo kept > note; cat note").stdout == "kept\n"
    assert cli("cp", f"{container}:/workspace/note", "-").stdout == "kept\n"
    assert cli("logs", container).stdout == "from-main\n"
    assert json.loads(cli("inspect", container).stdout)["provider"] == "docker"
    stopped = cli("stop", container, detached)
    assert stopped.stdout == f"{container}\n{detached}\n"
    assert cli("ls", "-q", "--tag", tag).stdout == ""


def test_what_has_no_key_is_not_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*HOSTED, "KUBERNETES_SERVICE_HOST", "MODAL_CONFIG_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("SANDBOXKIT_PROVIDER", "local")
    assert _configured.lacking("e2b") == "$E2B_API_KEY is not set"
    assert not {"daytona", "e2b", "kubernetes", "modal"} & set(_configured.names())
    code = (
        "import sys; from sandboxkit.cli import main; main(['ls', '--tag', 'none:such']); "
        "print({'daytona', 'e2b', 'yaml', 'modal'} & set(sys.modules))"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, env=environment())
    assert done.stdout == "set()\n"
    monkeypatch.setenv("E2B_API_KEY", "e2b_key")
    monkeypatch.setenv("SANDBOXKIT_PROVIDER", "modal")
    assert _configured.names()[0] == "modal"
    assert {"e2b", "modal"} <= set(_configured.names())

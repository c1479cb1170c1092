"""`ls`, `cp`, `logs`, `stop` and `cleanup` on sandboxes of other processes."""

import json
import os
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest

from sandboxkit.cli.logs import last_lines, since
from tests.cli.conftest import Cli, Open, following


def test_ls_shows_state_and_public_tags_only(cli: Cli, detached: str, tag: str) -> None:
    (info,) = json.loads(cli("ls", "--tag", tag, "--json").stdout)
    assert info["id"] == detached
    assert (info["provider"], info["state"]) == ("local", "running")
    key, _, value = tag.partition(":")
    assert info["tags"] == {key: value}
    assert info["expires_at"] > info["created_at"]
    table = cli("ls", "--tag", tag).stdout
    assert detached in table
    assert tag in table
    assert "sandboxkit." not in table


def test_ls_filters_by_state_and_all_tags(cli: Cli, detached: str, tag: str) -> None:
    assert cli("ls", "-q", "--tag", tag, "--state", "running").stdout == f"{detached}\n"
    assert cli("ls", "-q", "--tag", tag, "--state", "stopped").stdout == ""
    assert cli("ls", "-q", "--tag", tag, "--tag", "other").stdout == ""
    assert detached in cli("ls", "-q", "-p", "local").stdout


def test_ls_writes_json_and_templates(cli: Cli, detached: str, tag: str) -> None:
    key, _, value = tag.partition(":")
    whole = cli("ls", "--tag", tag, "--format", "json").stdout
    assert whole == cli("ls", "--tag", tag, "--json").stdout
    form = rf"{{id}}\t{{provider}}\t{{tags.{key}}}\t{{tags.none}}."
    shown = cli("ls", "--tag", tag, "--format", form).stdout
    assert shown == f"{detached}\tlocal\t{value}\t.\n"
    for wrong in ("{ID}", "ids"):
        result = cli("ls", "--format", wrong)
        assert result.returncode == 2
        assert "{created_at}" in result.stderr or "{id} {state}" in result.stderr


def test_inspect_says_what_ls_does_and_what_was_used(cli: Cli, detached: str, tag: str) -> None:
    reply = json.loads(cli("inspect", detached).stdout)
    (listed,) = json.loads(cli("ls", "--tag", tag, "--json").stdout)
    assert reply.items() >= listed.items()
    assert reply["detached"] is True
    assert reply["usage"]["processor_seconds"] >= 0


def test_ls_on_a_terminal_is_a_table(terminal: Open, detached: str, tag: str) -> None:
    window = terminal("ls", "--tag", tag, cols=120)
    assert window.exit_code() == 0
    assert detached.encode() in window.screen
    assert "─" in window.screen.decode()


def test_ls_on_a_narrow_terminal_keeps_every_word_whole(
    terminal: Open, detached: str, tag: str
) -> None:
    window = terminal("ls", "--tag", tag, cols=64)
    assert window.exit_code() == 0
    first, second = window.screen.decode().splitlines()[1:3]
    assert detached in first
    assert tag in second
    assert max(map(len, re.sub(r"\x1b\[[\d;]*m", "", window.screen.decode()).splitlines())) <= 64


def test_cp_copies_files_and_folders_both_ways(cli: Cli, detached: str, tmp_path: Path) -> None:
    source = tmp_path / "project"
    (source / "deep").mkdir(parents=True)
    (source / "deep" / "data.bin").write_bytes(bytes(range(256)))
    (source / "run.sh").write_text("#!/bin/sh\necho ran\n")
    os.chmod(source / "run.sh", 0o755)

    assert cli("cp", str(source), f"{detached}:/workspace").returncode == 0
    assert cli("exec", detached, "project/run.sh").stdout == "ran\n"
    assert (
        cli("cp", f"{detached}:/workspace/project/run.sh", str(tmp_path / "copy")).returncode == 0
    )
    assert (tmp_path / "copy").read_text() == "#!/bin/sh\necho ran\n"
    back = tmp_path / "back"
    back.mkdir()
    assert cli("cp", f"{detached}:/workspace/project/", str(back)).returncode == 0
    assert (back / "project" / "deep" / "data.bin").read_bytes() == bytes(range(256))


def test_cp_leaves_links_out_and_says_so(cli: Cli, detached: str, tmp_path: Path) -> None:
    script = "mkdir d && echo x > d/file && ln -s /etc/passwd \"$(printf 'd/a\\033[2Jb')\""
    assert cli("exec", detached, "sh", "-c", script).returncode == 0
    result = cli("cp", f"{detached}:/workspace/d", str(tmp_path / "d"))
    assert result.returncode == 0
    assert [path.name for path in (tmp_path / "d").iterdir()] == ["file"]
    assert "skipped 1 link" in result.stderr
    assert "\x1b" not in result.stderr


def test_cp_refuses_what_it_cannot_do(cli: Cli) -> None:
    for args in (("a", "b"), ("x:/a", "y:/b"), ("x:relative", "b"), ("/no/such/file", "x:/a")):
        result = cli("cp", *args)
        assert result.returncode in (2, 125)
        assert result.stderr.startswith("sandboxkit: error: ")


def test_cp_writes_to_standard_output_and_reads_standard_input(cli: Cli, detached: str) -> None:
    content = "one\ntwo \udcff\0"
    sent = cli("cp", "-", f"{detached}:/workspace/deep/file", stdin=content)
    assert (sent.returncode, sent.stderr) == (0, "")
    assert cli("exec", detached, "stat", "-c", "%a", "deep/file").stdout == "644\n"
    got = cli("cp", f"{detached}:/workspace/deep/file", "-")
    assert (got.returncode, got.stdout, got.stderr) == (0, content, "")
    assert not Path("-").exists()
    folder = cli("cp", f"{detached}:/workspace", "-")
    assert folder.returncode == 2
    assert f"exec {detached} tar c /workspace" in folder.stderr
    nameless = cli("cp", "-", f"{detached}:/workspace", stdin="x")
    assert nameless.returncode == 2
    assert "add a file name" in nameless.stderr


def test_a_long_copy_says_on_a_terminal_how_far_it_is(
    cli: Cli, terminal: Open, detached: str
) -> None:
    window = terminal("cp", "-", f"{detached}:/workspace/typed")
    typed = 0
    while b"copied " not in window.screen:
        window.type("x\n")
        typed += 1
        window.read(0.1)
    window.type("\x04")
    assert window.exit_code() == 0
    assert cli("exec", detached, "cat", "typed").stdout == "x\n" * typed


def test_top_prints_one_list_after_the_other_where_nobody_watches(
    tag: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # No other test's process waits for room in this folder: `top` would show it.
    monkeypatch.setenv("SANDBOXKIT_STATE_DIR", str(tmp_path / "state"))
    with following("top", "-p", "local", "--tag", tag, "--interval", "0.2s") as process:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(4)]
    assert all(line.startswith("0 sandboxes, ") for line in lines[::2])
    assert all(line.split()[:2] == ["ID", "PROVIDER"] for line in lines[1::2])
    assert not any("\x1b" in line for line in lines)


WAITS = """
import time
from sandboxkit import Session, _reconciler
from sandboxkit.testing import FakeProvider

_reconciler._WARN_SECONDS = 0.1
session = Session(FakeProvider(), max_concurrency=1)
first = session.sandbox().start().result()
second = session.sandbox().start()
if input() == "go on":
    first.stop().result()
    second.result()
    print("over", flush=True)
    input()
"""


def shown_below(process: "subprocess.Popen[str]", number: int, there: bool) -> str:
    """Read lists until a line names the process, or until a list ends without such a line."""
    assert process.stdout is not None
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
            [sys.executable, "-c", WAITS],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
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


def test_logs_shows_the_main_command(cli: Cli, tag: str) -> None:
    started = cli(
        "run", "-d", "--lifetime", "5m", "--tag", tag, "sh", "-c", "echo from-main; sleep 300"
    )
    sandbox_id = started.stdout.strip()
    shown = ""
    try:
        for _ in range(50):
            if shown := cli("logs", sandbox_id).stdout:
                break
        assert shown == "from-main\n"
    finally:
        cli("stop", sandbox_id)


def test_logs_follows_the_main_command_to_its_end(cli: Cli, tag: str) -> None:
    script = "echo one; echo two; until [ -e go ]; do sleep 0.1; done; echo three"
    sandbox_id = cli(
        "run", "-d", "--lifetime", "5m", "--tag", tag, "sh", "-c", script
    ).stdout.strip()
    try:
        with following("logs", "--follow", sandbox_id) as process:
            assert process.stdout is not None
            assert [process.stdout.readline() for _ in "12"] == ["one\n", "two\n"]
            assert cli("logs", "--tail", "1", sandbox_id).stdout == "two\n"
            cli("exec", sandbox_id, "touch", "go")
            assert process.stdout.read() == "three\n"
            assert process.wait(timeout=60) == 0
    finally:
        cli("stop", sandbox_id)


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


def test_stop_attempts_all_and_reports_each(cli: Cli, detached: str, tag: str) -> None:
    result = cli("stop", "no-such-sandbox", detached)
    assert result.returncode == 1
    assert result.stdout == f"{detached}\n"
    assert "no-such-sandbox" in result.stderr
    assert cli("ls", "-q", "--tag", tag).stdout == ""


def test_pause_and_resume_by_id(cli: Cli, detached: str, tag: str) -> None:
    result = cli("pause", "no-such-sandbox", detached)
    assert (result.returncode, result.stdout) == (1, f"{detached}\n")
    assert "no-such-sandbox" in result.stderr
    assert "paused" in cli("ls", "--tag", tag).stdout
    refused = cli("exec", detached, "--", "true")
    assert refused.returncode == 125
    assert "resume" in refused.stderr
    assert cli("resume", detached).stdout == f"{detached}\n"
    assert cli("exec", detached, "--", "true").returncode == 0
    cli("pause", detached)
    assert cli("cleanup", "--tag", tag).returncode == 0
    assert cli("ls", "-q", "--tag", tag).stdout == ""


def test_cleanup_without_a_selection_is_refused(cli: Cli) -> None:
    result = cli("cleanup", "--dry-run")
    assert result.returncode == 2
    assert "nothing selected" in result.stderr


def test_cleanup_by_tag_says_what_it_removes(cli: Cli, detached: str, tag: str) -> None:
    dry = cli("cleanup", "--tag", tag, "--dry-run")
    assert dry.returncode == 0
    assert detached in dry.stdout
    assert "would remove 1 sandbox" in dry.stdout
    assert "nothing to remove" in cli("cleanup", "--tag", tag, "--older-than", "1h").stdout
    assert "nothing to remove" in cli("cleanup", "--tag", tag, "--orphans", "--expired").stdout
    real = cli("cleanup", "--tag", tag)
    assert real.returncode == 0
    assert detached in real.stdout
    assert "removed 1 sandbox" in real.stdout
    assert cli("ls", "-q", "--tag", tag).stdout == ""


def test_a_mounted_folder_is_stored_until_a_cleanup_of_datasets(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SANDBOXKIT_STATE_DIR", str(tmp_path / "state"))
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "file").write_text("content")
    shown = cli("run", "--mount", f"/data={tmp_path / 'data'}", "--", "cat", "/data/file")
    assert shown.stdout == "content", shown.stderr
    dry = cli("cleanup", "--datasets", "--dry-run", "-p", "local")
    digest, last = dry.stdout.splitlines()
    assert (digest[:7], last) == ("sha256:", "would remove 1 dataset")
    again = cli("run", "--mount", f"/data={digest}", "--", "cat", "/data/file")
    assert again.stdout == "content", again.stderr
    assert cli("cleanup", "--datasets", "-p", "local").stdout == f"{digest}\nremoved 1 dataset\n"
    assert cli("cleanup", "--datasets", "-p", "local").stdout == "nothing to remove\n"
    gone = cli("run", "--mount", f"/data={digest}", "--", "true")
    assert gone.returncode == 2
    assert f"no dataset '{digest}' is stored" in gone.stderr


def test_a_volume_keeps_what_a_sandbox_wrote_until_it_is_removed(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SANDBOXKIT_STATE_DIR", str(tmp_path / "state"))
    assert cli("volumes", "ls").stdout == ""
    for expected in ("1\n", "2\n"):
        script = "echo line >> /cache/file; wc -l < /cache/file"
        shown = cli("run", "--mount", "/cache=volume:pip", "--", "sh", "-c", script)
        assert shown.stdout == expected, shown.stderr
    assert cli("volumes", "ls").stdout == "pip\n"
    removed = cli("volumes", "rm", "pip", "other", "-p", "local")
    assert (removed.returncode, removed.stdout) == (1, "pip\n")
    assert "no volume 'other'" in removed.stderr
    assert cli("volumes", "ls").stdout == ""
    misspelt = cli("volumes", "rm", "Pip")
    assert misspelt.returncode == 2
    assert "use 1 to 32 characters of a-z" in misspelt.stderr


def test_a_mount_without_data_is_refused(cli: Cli) -> None:
    result = cli("run", "--mount", "/data", "--", "true")
    assert (
        "--mount '/data' is not valid; write --mount /data=./folder or /data=volume:NAME"
        in result.stderr
    )


def test_cleanup_works_across_providers(cli: Cli, detached: str, tag: str) -> None:
    result = cli("cleanup", "--tag", tag, "--all-providers")
    assert result.returncode == 0, result.stderr
    assert detached in result.stdout

"""`ls`, `cp`, `logs`, `stop` and `cleanup` on sandboxes of other processes."""

import json
import os
from pathlib import Path

from tests.cli.conftest import Cli, Open


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
    assert detached in cli("ls", "-q", "--all").stdout


def test_ls_on_a_terminal_is_a_table(terminal: Open, detached: str, tag: str) -> None:
    window = terminal("ls", "--tag", tag, cols=120)
    assert window.exit_code() == 0
    assert detached.encode() in window.screen
    assert "─" in window.screen.decode()


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
    assert "left out 1 link" in result.stderr
    assert "\x1b" not in result.stderr


def test_cp_refuses_what_it_cannot_do(cli: Cli) -> None:
    for args in (("a", "b"), ("x:/a", "y:/b"), ("x:relative", "b"), ("/no/such/file", "x:/a")):
        result = cli("cp", *args)
        assert result.returncode in (2, 125)
        assert result.stderr.startswith("sandboxkit: error: ")


def test_logs_shows_the_main_command(cli: Cli, tag: str) -> None:
    started = cli(
        "run", "-d", "--lifetime", "60s", "--tag", tag, "sh", "-c", "echo from-main; sleep 60"
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


def test_stop_attempts_all_and_reports_each(cli: Cli, detached: str, tag: str) -> None:
    result = cli("stop", "no-such-sandbox", detached)
    assert result.returncode == 1
    assert result.stdout == f"{detached}\n"
    assert "no-such-sandbox" in result.stderr
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


def test_cleanup_works_across_providers(cli: Cli, detached: str, tag: str) -> None:
    result = cli("cleanup", "--tag", tag, "--all-providers")
    assert result.returncode == 0, result.stderr
    assert detached in result.stdout

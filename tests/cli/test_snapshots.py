"""`snapshots`, `run --snapshot` and `cleanup --snapshots`, on sandboxes of other processes."""

import json

from tests.cli.conftest import Cli


def test_a_snapshot_is_created_listed_used_and_removed(cli: Cli, detached: str, tag: str) -> None:
    assert cli("exec", detached, "sh", "-c", "echo kept > /workspace/file").returncode == 0
    done = cli("snapshots", "create", detached, "--name", "base", "--ttl", "1h", "--tag", "x:1")
    assert done.returncode == 0, done.stderr
    snapshot = done.stdout.strip()
    (info,) = json.loads(cli("snapshots", "ls", "--tag", tag, "--tag", "x:1", "--json").stdout)
    assert (info["id"], info["name"], info["kind"]) == (snapshot, "base", "files")
    assert info["provider"] == "local"
    table = cli("snapshots", "ls", "--tag", tag).stdout
    assert snapshot in table
    assert "base" in table
    ran = cli("run", "--snapshot", snapshot, "cat", "/workspace/file")
    assert (ran.returncode, ran.stdout) == (0, "kept\n"), ran.stderr
    assert cli("snapshots", "rm", snapshot).stdout == f"{snapshot}\n"
    again = cli("snapshots", "rm", snapshot)
    assert again.returncode == 1
    assert "snapshots ls" in again.stderr
    assert json.loads(cli("snapshots", "ls", "--tag", tag, "--json").stdout) == []
    missing = cli("run", "--snapshot", snapshot, "true")
    assert missing.returncode == 125
    assert snapshot in missing.stderr


def test_cleanup_removes_snapshots_by_tag_and_leaves_sandboxes(
    cli: Cli, detached: str, tag: str
) -> None:
    snapshot = cli("snapshots", "create", detached).stdout.strip()
    planned = cli("cleanup", "--snapshots", "--tag", tag, "--dry-run").stdout
    assert planned == f"{snapshot}\nwould remove 1 snapshot\n"
    done = cli("cleanup", "--snapshots", "--tag", tag)
    assert (done.returncode, done.stdout) == (0, f"{snapshot}\nremoved 1 snapshot\n"), done.stderr
    assert cli("ls", "-q", "--tag", tag).stdout == f"{detached}\n"


def test_cleanup_leaves_a_snapshot_that_a_sandbox_uses(cli: Cli, detached: str, tag: str) -> None:
    snapshot = cli("snapshots", "create", detached).stdout.strip()
    user = cli("run", "-d", "--lifetime", "5m", "--snapshot", snapshot).stdout.strip()
    try:
        assert cli("cleanup", "--snapshots", "--tag", tag).stdout == "nothing to remove\n"
        assert snapshot in cli("snapshots", "ls", "--tag", tag).stdout
    finally:
        cli("stop", user)
    assert snapshot in cli("cleanup", "--snapshots", "--tag", tag).stdout


def test_cleanup_removes_an_expired_snapshot(cli: Cli, detached: str, tag: str) -> None:
    assert cli("snapshots", "create", detached, "--ttl", "0.1s").returncode == 0
    cli("cleanup", "--snapshots")  # or another session's first start was faster
    assert cli("snapshots", "ls", "--tag", tag).stdout == ""

"""`max_live`: one cap for all processes of a user on this machine, held by locks of the kernel."""

import signal
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import pytest

from sandboxkit import ConfigurationError, Session, _machine_semaphore, wait
from sandboxkit.testing import FakeProvider

PROGRAMS = tomllib.loads(Path(__file__).with_name("max_live.toml").read_text())


class Here(FakeProvider):
    """Has sandboxes on this machine."""

    on_this_machine: ClassVar[bool] = True


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    path = tmp_path / "state"
    monkeypatch.setenv("SANDBOXKIT_STATE_DIR", str(path))
    monkeypatch.setenv("TMPDIR", str(tmp_path))  # what one test kills is pytest's to remove
    yield path
    _machine_semaphore._forget()  # the next test has another folder


def process(code: str, *arguments: object) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAMS["prelude"] + code, *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def line_of(child: "subprocess.Popen[str]") -> str:
    assert child.stdout is not None
    return child.stdout.readline().strip()


def end(child: "subprocess.Popen[str]") -> None:
    child.communicate("\n", timeout=60)
    assert child.returncode == 0


def test_the_cap_holds_for_all_sessions_of_a_process() -> None:
    with Session(Here(), max_live=2) as first, Session(Here(), max_live=2) as second:
        first.sandbox(counted=False).start().result(60)
        running = [first.sandbox().start().result(60), second.sandbox().start().result(60)]
        waiting = second.sandbox().start()
        assert wait([waiting], timeout=0.2) == ([], [waiting])
        running[0].stop().result(60)
        waiting.result(60)


def test_the_cap_holds_for_all_processes_and_starves_none() -> None:
    with process(PROGRAMS["hold"], 2, 1) as other, Session(Here(), max_live=2) as session:
        assert line_of(other) == "has"
        mine = session.sandbox().start().result(60)
        waiting = session.sandbox().start()
        with process(PROGRAMS["hold"], 2, 1) as third:
            assert wait([waiting], timeout=0.2) == ([], [waiting])
            end(other)
            mine.stop().result(60)
            assert line_of(third) == "has"
            waiting.result(60)
            end(third)


def test_a_process_that_is_killed_frees_its_places() -> None:
    with process(PROGRAMS["hold"], 3, 3) as other, Session(Here(), max_live=3) as session:
        assert [line_of(other) for _ in range(3)] == ["has"] * 3
        waiting = [session.sandbox().start() for _ in range(3)]
        assert wait(waiting, timeout=0.2)[0] == []
        other.send_signal(signal.SIGKILL)
        assert len(wait(waiting, num_returns=3, timeout=60)[0]) == 3


def test_a_forked_child_has_no_place_and_takes_none_away() -> None:
    with process(PROGRAMS["fork"]) as parent, Session(Here(), max_live=1) as session:
        assert line_of(parent) == "full"
        waiting = session.sandbox().start()
        assert wait([waiting], timeout=0.2) == ([], [waiting])
        waiting.cancel()
        assert parent.stdin is not None
        parent.stdin.write("\n")
        parent.stdin.flush()
        assert line_of(parent) == "mine"
        assert parent.wait(30) == 0


def test_a_start_cancelled_while_it_waits_takes_no_place() -> None:
    with Session(Here(), max_live=1, max_concurrency=2) as session:
        with session.sandbox():
            for _ in range(5):
                session.sandbox().start().cancel()
        for _ in range(2):
            with session.sandbox():
                pass


def test_a_detached_sandbox_counts_until_its_session_is_closed() -> None:
    provider = Here()
    with Session(provider, max_live=1) as session:
        detached = session.sandbox(detach=True).start().result(60)
        waiting = session.sandbox().start()
        assert wait([waiting], timeout=0.2) == ([], [waiting])
        waiting.cancel()
    with Session(provider, max_live=1) as session:
        session.adopt(detached).result(60)


def test_the_environment_variable_is_the_default_cap(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SANDBOXKIT_MAX_LIVE", "1")
    with Session(Here()) as session, session.sandbox():
        waiting = session.sandbox().start()
        assert wait([waiting], timeout=0.2) == ([], [waiting])
        with Session(Here(), max_live=2) as wider:
            wider.sandbox().start().result(60)


@pytest.mark.parametrize("value", ["0", "-1", "1.5", "many", " "])
def test_the_environment_variable_of_the_cap_is_checked(
    value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SANDBOXKIT_MAX_LIVE", value)
    with pytest.raises(ConfigurationError, match="SANDBOXKIT_MAX_LIVE="):
        Session(Here())


def test_hosted_sandboxes_have_no_machine_cap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SANDBOXKIT_MAX_LIVE", "1")
    with Session(FakeProvider()) as session, session.sandbox():
        session.sandbox().start().result(60)


def test_a_folder_that_others_can_write_is_refused(folder: Path) -> None:
    folder.mkdir(mode=0o755)
    with pytest.raises(ConfigurationError, match="0700"):
        Session(Here(), max_live=1)


def test_a_link_in_place_of_the_file_is_refused(folder: Path, tmp_path: Path) -> None:
    folder.mkdir(mode=0o700)
    (folder / "live-fake").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigurationError, match="STATE_DIR"):
        Session(Here(), max_live=1)

"""Shells are kept for the next command: none fails for that, whatever the last one did."""

import time
from collections.abc import Callable
from typing import Any, ClassVar

import pytest

from sandboxkit import CommandTimeoutError, Operation, Sandbox, Session
from sandboxkit.provider import Provider
from sandboxkit.providers._hosted.kept import lines, scripts

Opened = Callable[[], int]
LATE_READERS = scripts.SERVE.replace("while exec", "while sleep 0.1; exec")
assert LATE_READERS != scripts.SERVE


def said(sandbox: Sandbox) -> str:
    """What a command says that must succeed."""
    result = sandbox.exec(["echo", "hello"]).result(30)
    assert (result.returncode, result.stderr) == (0, "")
    return result.stdout


def eventually(true: Callable[[], bool], seconds: float = 10) -> None:
    """Wait until it is."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end
        time.sleep(0.02)


def settle(sandbox: Sandbox) -> None:
    """Wait until every kept shell is ready for a command."""
    provider: Any = sandbox._provider  # Any: only those of hosted sandboxes have machines
    kept = provider._machines[sandbox.id].lines._kept
    eventually(lambda: bool(kept) and all(each.settled for each in kept))


class KeptShells:
    """Derive a class named Test..., with `ours` and the fixtures `session`, `opened` and `another`."""

    ours: ClassVar[str]
    """In the command line of each of our shells; as a pattern not in that of who looks for it."""

    @pytest.fixture
    def sandbox(self, session: Session) -> Sandbox:
        """One with a kept shell."""
        sandbox = session.sandbox().start().result(30)
        assert said(sandbox) == "hello\n"
        return sandbox

    @pytest.fixture
    def opened(self, sandbox: Sandbox) -> Opened:
        """What counts the shells started since there is the sandbox."""
        raise NotImplementedError

    @pytest.fixture
    def another(self, sandbox: Sandbox) -> Provider:
        """A provider that is not the session's, of the same account."""
        raise NotImplementedError

    def shells(self, sandbox: Sandbox) -> list[str]:
        """The ids of our shells, that of this command included, and of their readers."""
        return sandbox.exec(["pgrep", "-f", self.ours]).result(30).stdout.split()

    def test_a_command_after_another_needs_no_new_one(
        self, sandbox: Sandbox, opened: Opened
    ) -> None:
        for _ in range(5):
            settle(sandbox)
            assert said(sandbox) == "hello\n"
        assert opened() == 0

    def test_of_many_few_are_kept(self, sandbox: Sandbox, opened: Opened) -> None:
        for process in [sandbox.exec(["sleep", "0.5"]) for _ in range(20)]:
            assert process.result(60).returncode == 0
        assert opened() in (19, 20)
        # Each has two readers, which are forks of it; and one more is in use as they are counted.
        eventually(lambda: len(self.shells(sandbox)) <= (8 + 1) * 3)
        before = opened()
        settle(sandbox)
        assert said(sandbox) == "hello\n"
        assert opened() == before

    def test_none_is_kept_for_long(
        self, sandbox: Sandbox, opened: Opened, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(lines, "_IDLE_SECONDS", 0.2)
        assert said(sandbox) == "hello\n"
        time.sleep(1)
        assert opened() == 0
        eventually(lambda: len(self.shells(sandbox)) == 3)  # its own
        assert opened() >= 1

    def test_one_that_no_longer_answers_is_not_used(self, sandbox: Sandbox, opened: Opened) -> None:
        stop = f"(sleep 0.3; pkill -STOP -f '{self.ours}') >/dev/null 2>&1 &"
        sandbox.exec(["sh", "-c", stop]).result(30)
        time.sleep(1.5)  # so that it is asked
        assert said(sandbox) == "hello\n"
        assert opened() == 1

    def test_what_a_command_left_behind_writes_to_no_other(
        self, sandbox: Sandbox, opened: Opened
    ) -> None:
        noise = "(while echo noise && echo noise >&2; do sleep 0.01; done) & echo first"
        assert "first\n" in sandbox.exec(["sh", "-c", noise]).result(30).stdout
        for _ in range(30):
            assert said(sandbox) == "hello\n"
        assert sandbox.exec(["pkill", "-f", "echo nois[e]"]).result(30).returncode == 0
        assert 1 <= opened() <= 5  # one, unless the machine is so busy that none had settled

    def test_readers_that_are_late_miss_no_command(
        self, session: Session, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(scripts, "SERVE", LATE_READERS)
        sandbox = session.sandbox()
        for _ in range(4):
            assert said(sandbox) == "hello\n"

    def test_after_a_kill_another_is_used(self, sandbox: Sandbox) -> None:
        with pytest.raises(CommandTimeoutError):
            sandbox.exec(["sh", "-c", "setsid sleep 1000 & sleep 1000"], timeout=0.5).result(30)
        assert said(sandbox) == "hello\n"
        assert sandbox.exec(["pgrep", "-f", "sleep 100[0]"]).result(30).stdout == ""

    def test_a_command_that_kills_them(self, sandbox: Sandbox) -> None:
        for process in [sandbox.exec(["sleep", "0.3"]) for _ in range(3)]:
            process.result(30)
        killed = sandbox.exec(["pkill", "-9", "-f", self.ours]).result(30)
        assert killed.returncode in (0, 137)  # whether it could still say that it ended well
        for _ in range(4):
            assert said(sandbox) == "hello\n"

    def test_a_command_that_clears_the_temporary_files(
        self, sandbox: Sandbox, opened: Opened
    ) -> None:
        sandbox.exec(["sh", "-c", "rm -rf /tmp/.s*"]).result(30)
        for _ in range(3):
            settle(sandbox)
            assert said(sandbox) == "hello\n"
        assert opened() == 0

    def test_a_closed_provider_leaves_none(self, sandbox: Sandbox, another: Provider) -> None:
        with Session(another) as visitor:
            visited = visitor.from_id(str(sandbox.id)).result(30)
            for process in [visited.exec(["sleep", "0.3"]) for _ in range(3)]:
                process.result(30)
            assert len(self.shells(sandbox)) >= (3 + 1) * 3
        Operation(another.aclose()).result(30)
        eventually(lambda: len(self.shells(sandbox)) == 3)  # its own
        found = sandbox.exec(["sh", "-c", "ls -d /tmp/.sandboxkit-*"]).result(30).stdout
        assert found.count("\n") == 1  # its own

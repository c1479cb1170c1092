"""Tests of commands that cannot start, and of sandbox starts that are cancelled."""

import errno
import os
import time
from typing import Any

from sandboxkit import CommandStartError, ConfigurationError, Sandbox, Session
from sandboxkit.provider import Provider
from sandboxkit.testing.conformance._base import DEADLINE, Conformance, mine, token, until
from sandboxkit.testing.conformance._pytest import pytest

_TOO_LONG = "x" * 200_000
"""A value over Linux's limit of 128 KiB for one environment variable."""
_MOMENTS = (0.0, 0.02, 0.1, 0.3, 0.5, 0.7, 0.9, 1.0)
"""When starts are cancelled, as fractions of the duration of a start."""
_AT_ONCE = 200
_UNDONE = 15.0
"""Seconds until a cancelled sandbox must be gone; vendors take time to create and delete."""
# Any: invalid input, also for type checkers.
_NO_INPUT: list[Any] = [7, 1.5, ["a"], {"a": 1}, object()]
_NO_CONTENT: list[Any] = [7, None, ["a"]]


class CommandStartConformance(Conformance):
    """No program, no `cwd` or no room raises `CommandStartError`; it never gives status 126 or 127."""

    def test_a_script_without_its_interpreter_has_no_status(
        self, shared: Sandbox, folder: str
    ) -> None:
        script = "#!/no/such/interpreter\n"
        shared.write_file(f"{folder}/script", script, mode=0o755).result(DEADLINE)
        with pytest.raises(CommandStartError, match="script") as caught:
            shared.exec([f"{folder}/script"]).result(DEADLINE)
        assert caught.value.errno in (errno.ENOENT, None)
        assert not caught.value.retryable

    def test_a_folder_cannot_be_executed(self, shared: Sandbox, folder: str) -> None:
        with pytest.raises(CommandStartError) as caught:
            shared.exec([folder]).result(DEADLINE)
        assert caught.value.errno in (errno.EACCES, None)

    def test_a_cwd_that_is_a_file(self, shared: Sandbox, folder: str) -> None:
        shared.write_file(f"{folder}/plain", "").result(DEADLINE)
        with pytest.raises(CommandStartError, match="plain") as caught:
            shared.exec(["true"], cwd=f"{folder}/plain").result(DEADLINE)
        assert caught.value.errno in (errno.ENOTDIR, None)

    def test_variables_that_are_too_long_have_no_status(self, shared: Sandbox) -> None:
        with pytest.raises(CommandStartError) as caught:
            shared.exec(["true"], env={"LONG": _TOO_LONG}).result(DEADLINE)
        assert caught.value.errno in (errno.E2BIG, None)
        assert not caught.value.retryable
        assert shared.exec(["echo", "fine"]).result(DEADLINE).stdout == "fine\n"

    def test_many_commands_at_once_run_or_are_refused(self, sandbox: Sandbox) -> None:
        processes = [sandbox.exec(["true"]) for _ in range(_AT_ONCE)]
        for process in processes:
            error = process.exception(60)
            if error is None:
                assert process.result().returncode == 0
            else:
                assert isinstance(error, CommandStartError), repr(error)
                assert error.retryable
        assert sandbox.exec(["echo", "fine"]).result(DEADLINE).stdout == "fine\n"

    def test_any_bytes_are_input(self, shared: Sandbox) -> None:
        data = os.urandom(70_000)
        # Any: a memoryview supports the buffer protocol, but the signature may not include it.
        kinds: tuple[Any, ...] = (bytearray, memoryview)
        for kind in kinds:
            assert shared.exec(["cat"], stdin=kind(data)).result(DEADLINE).stdout_bytes == data

    def test_what_is_no_input_or_content_is_refused_before_anything_is_created(
        self, session: Session
    ) -> None:
        sandbox = session.sandbox()
        for stdin in _NO_INPUT:
            with pytest.raises(ConfigurationError, match="stdin"):
                sandbox.exec(["cat"], stdin=stdin)
        for data in _NO_CONTENT:
            with pytest.raises(ConfigurationError, match="data"):
                sandbox.write_file("/workspace/file", data)
        assert sandbox.id is None
        assert mine(session) == []


class SandboxStartConformance(Conformance):
    """A start that loses its last waiter is undone, at any moment."""

    def test_a_cancelled_start_leaves_nothing_and_frees_its_slot(self, provider: Provider) -> None:
        with Session(
            provider, image=self.image, tags={"conformance": token()}, max_concurrency=1
        ) as session:
            began = time.monotonic()
            session.sandbox().start().result(DEADLINE).stop().result(DEADLINE)
            takes = time.monotonic() - began
            for moment in _MOMENTS:
                sandbox = session.sandbox()
                start = sandbox.start()
                time.sleep(moment * takes)  # cancel at different moments of the start
                if not start.cancel():  # the start was quicker this time
                    sandbox.stop().result(DEADLINE)
            until(lambda: mine(session) == [], "what was cancelled is gone", _UNDONE)
            assert session.run(["echo", "room"]).result(DEADLINE).stdout == "room\n"
            until(lambda: mine(session) == [], "nothing is left", _UNDONE)

    def test_a_command_cancelled_before_its_sandbox_runs_leaves_nothing(
        self, session: Session
    ) -> None:
        for _ in range(5):
            sandbox = session.sandbox()
            assert sandbox.exec(["sleep", "1000"]).cancel()
            until(
                lambda: sandbox.id is not None or mine(session) == [],  # noqa: B023
                "the start was undone",
                _UNDONE,
            )
            if sandbox.id is None:
                return
            sandbox.stop().result(DEADLINE)  # the sandbox ran before the cancellation
        pytest.fail("each start ended, although nobody waited for it any more")

    def test_a_start_continues_for_its_other_waiters(self, session: Session) -> None:
        sandbox = session.sandbox()
        first, second = sandbox.start(), sandbox.start()
        first.cancel()
        assert second.result(DEADLINE).exec(["echo", "up"]).result(DEADLINE).stdout == "up\n"
        assert len(mine(session)) == 1

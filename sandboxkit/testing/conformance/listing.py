"""Tests of finding sandboxes by tag, by id and from another process."""

import subprocess
import sys
import time

from sandboxkit import ConfigurationError, Sandbox, SandboxNotFoundError, SandboxState, Session
from sandboxkit.provider import Provider
from sandboxkit.testing.conformance._base import DEADLINE, Conformance, mine, token
from sandboxkit.testing.conformance._pytest import pytest


class ListingConformance(Conformance):
    """Tags, list, from_id and adopt."""

    def test_tags_are_stored_completely(self, session: Session) -> None:
        tags = {"a": "1", "flag": "", "odd": "x=y:z, ü 'q'", "long": "v" * 200}
        sandbox = session.sandbox(tags=tags).start().result(DEADLINE)
        found = sandbox.status().result(DEADLINE).tags
        assert {key: found.get(key) for key in tags} == tags

    def test_several_tags_are_all_required(self, session: Session) -> None:
        run = token()
        both = session.sandbox(tags={"run": run, "half": "1"}).start().result(DEADLINE)
        session.sandbox(tags={"run": run, "half": "2"}).start().result(DEADLINE)
        assert len(session.list({"run": run}).result(DEADLINE)) == 2
        found = session.list({"run": run, "half": "1"}).result(DEADLINE)
        assert [info.id for info in found] == [both.id]

    def test_a_tag_matches_by_its_full_value(self, session: Session) -> None:
        run = token()
        session.sandbox(tags={"run": run}).start().result(DEADLINE)
        assert session.list({"run": run[:-1]}).result(DEADLINE) == []
        assert session.list({"run": ""}).result(DEADLINE) == []

    def test_a_listing_by_tag_shows_no_others(self, session: Session, sandbox: Sandbox) -> None:
        assert session.list({"nobody-has": token()}).result(DEADLINE) == []
        ids = [info.id for info in session.list(session._spec.tags).result(DEADLINE)]
        assert ids == [sandbox.id]

    def test_a_listing_describes_what_it_lists(self, session: Session, sandbox: Sandbox) -> None:
        (info,) = mine(session)
        assert (info.id, info.provider) == (sandbox.id, sandbox.provider_name)
        assert info.state is SandboxState.RUNNING
        assert info.created_at is None or info.created_at.tzinfo is not None
        assert info.expires_at is None or info.expires_at.tzinfo is not None

    def test_the_end_of_the_lifetime_is_listed(self, sandbox: Sandbox) -> None:
        asked = sandbox.spec.lifetime
        assert asked is not None
        assert abs(_left(sandbox) - asked) < asked / 2 + _TOLERANCE

    def test_renew_moves_the_end_that_is_listed(self, sandbox: Sandbox) -> None:
        before = _left(sandbox)
        try:
            sandbox.renew(2 * before).result(DEADLINE)
        except ConfigurationError as error:
            pytest.skip(str(error))
        left = _left(sandbox)
        if before - _TOLERANCE < left <= before:  # a container's labels are those of its birth
            pytest.skip(f"renewed, but the listing has the original end: {left:.0f} s left")
        assert abs(left - 2 * before) < _TOLERANCE

    def test_a_listing_filters_by_state(self, session: Session, sandbox: Sandbox) -> None:
        tags = session._spec.tags
        assert len(session.list(tags, SandboxState.RUNNING).result(DEADLINE)) == 1
        assert session.list(tags, SandboxState.STOPPED).result(DEADLINE) == []

    def test_another_session_sees_it_and_leaves_it(
        self, provider: Provider, session: Session, sandbox: Sandbox
    ) -> None:
        assert sandbox.id is not None
        with Session(provider) as other:
            assert len(other.list(session._spec.tags).result(DEADLINE)) == 1
            same = other.from_id(sandbox.id).result(DEADLINE)
            assert same.exec(["echo", "hello"]).result(DEADLINE).stdout == "hello\n"
        assert sandbox.exec(["echo", "still"]).result(DEADLINE).stdout == "still\n"

    def test_from_id_of_an_unknown_sandbox(self, session: Session) -> None:
        for sandbox_id in ("no-such-sandbox", "../x", "a b", token()):
            with pytest.raises(SandboxNotFoundError):
                session.from_id(sandbox_id).result(DEADLINE)

    def test_an_adopted_sandbox_ends_with_its_new_session(
        self, provider: Provider, session: Session, sandbox: Sandbox
    ) -> None:
        with Session(provider) as other:
            other.adopt(sandbox).result(DEADLINE)
        assert mine(session) == []

    def test_an_id_is_a_plain_string(self, shared: Sandbox) -> None:
        assert shared.id is not None
        assert shared.id.isprintable()
        assert not set(shared.id) & set(" /'\"")

    def test_two_sandboxes_share_nothing(self, session: Session) -> None:
        first, second = session.sandbox(), session.sandbox()
        first.write_file("/workspace/file", "first").result(DEADLINE)
        with pytest.raises(FileNotFoundError):
            second.read_file("/workspace/file").result(DEADLINE)
        assert first.id != second.id


_TOLERANCE = 120.0
"""Seconds; some vendors store lifetimes in whole minutes."""


def _left(sandbox: Sandbox) -> float:
    expires = sandbox.status().result(DEADLINE).expires_at
    if expires is None:
        pytest.skip("the backend does not say when a sandbox expires")
    return expires.timestamp() - time.time()


_OTHER = """
import importlib, sys
from sandboxkit import Session
module, name = sys.argv[1].split(":")
with Session(getattr(importlib.import_module(module), name)()) as session:
    sandbox = session.from_id(sys.argv[2]).result(60)
    if sys.argv[3] == "cat":
        print(sandbox.exec(["cat", "file"]).result(60).stdout, end="")
        folder = sandbox.workdir().result(60)
        sandbox.write_file(f"{folder}/answer", "back").result(60)
    elif sys.argv[3] == "list":
        print(*[info.id for info in session.list(sys.argv[4]).result(60)], end="")
    else:
        sandbox.stop().result(60)
"""


class OtherProcessConformance(Conformance):
    """A sandbox is not tied to the object that made it: any process can use it."""

    def other(self, sandbox: Sandbox, *arguments: str) -> str:
        """Act on the sandbox from another process; return that process's output."""
        command = [sys.executable, "-c", _OTHER, self.spec, str(sandbox.id), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def test_another_process_uses_it(self, sandbox: Sandbox) -> None:
        folder = sandbox.workdir().result(DEADLINE)
        sandbox.write_file(f"{folder}/file", "over there").result(DEADLINE)
        assert self.other(sandbox, "cat") == "over there"
        assert sandbox.read_file(f"{folder}/answer").result(DEADLINE) == b"back"

    def test_another_process_lists_it(self, session: Session) -> None:
        run = token()
        sandbox = session.sandbox(tags={"run": run}).start().result(DEADLINE)
        assert self.other(sandbox, "list", f"run={run}") == sandbox.id

    def test_another_process_stops_it(self, session: Session, sandbox: Sandbox) -> None:
        self.other(sandbox, "stop")
        assert mine(session) == []
        with pytest.raises(SandboxNotFoundError):
            session.from_id(str(sandbox.id)).result(DEADLINE)

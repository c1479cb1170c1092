"""Whom commands run as in machines like the vendor's: images of another user, and those made root's."""

from collections.abc import Iterator

import pytest

from sandboxkit import ConfigurationError, SandboxStartError, Session
from tests.components import require_program
from tests.emulators._server import Server


@pytest.fixture
def sessions(rooted: Server) -> Iterator[Session]:
    with Session("daytona") as session:
        yield session


def test_the_default_start_works_with_an_image_of_another_user(sessions: Session) -> None:
    with sessions.sandbox() as sandbox:
        assert sandbox.workdir().result(60) == "/home/daytona/workspace"
        script = "id -un && pwd && touch file && ls"
        reply = sandbox.exec(["sh", "-c", script]).result(30).stdout
        assert reply == "daytona\n/home/daytona/workspace\nfile\n"


def test_a_workdir_that_cannot_be_made_names_user_and_folder(sessions: Session) -> None:
    with pytest.raises(SandboxStartError, match=r"/srv/work.*user daytona.*permission denied"):
        sessions.sandbox(workdir="/srv/work").start().result(60)


@pytest.mark.parametrize("user", ["root", "1234", "daytona"])
def test_a_user_is_honoured_with_an_image_of_a_registry(sessions: Session, user: str) -> None:
    with sessions.sandbox(image="python:3.12", user=user) as sandbox:
        script = "id -un 2>/dev/null || id -u; pwd; touch file"
        reply = sandbox.exec(["sh", "-c", script]).result(60).stdout.splitlines()
        assert (reply[-2], reply[-1]) == (user, "/workspace")


def test_strict_commands_run_as_a_user_without_files(sessions: Session) -> None:
    require_program("pgrep")
    with sessions.sandbox(image="python:3.12", profile="strict") as sandbox:
        script = "id -u; touch /usr/x /home/daytona/x /workspace/x; kill -15 $(pgrep -f '[p]ython3 -I -S')"
        reply = sandbox.exec(["sh", "-c", script]).result(60)
        assert reply.stdout == "65534\n"
        assert reply.stderr.count("ermission denied") == 2
        assert "not permitted" in reply.stderr
        assert sandbox.exec(["ls"]).result(30).stdout == "x\n"


def test_a_sandbox_is_reset_between_jobs(rooted: Server) -> None:
    users: set[str] = set()
    options = {"image": "python:3.12", "profile": "strict", "reuse": "reset"}
    with Session("daytona", pool=1, **options) as session:  # type: ignore[arg-type]  # literals
        for _ in range(3):
            with session.sandbox() as sandbox:
                users.add(sandbox.exec(["sh", "-c", "ls; touch left; id -u"]).result(60).stdout)
    assert len(users) == 3
    assert all(each.strip().isdecimal() for each in users)  # nothing was left


@pytest.mark.parametrize("options", [{"user": "root"}, {"profile": "strict"}])
def test_a_snapshot_has_its_own_user(sessions: Session, options: dict[str, str]) -> None:
    with pytest.raises(ConfigurationError, match="needs root"):
        sessions.sandbox(**options).start().result(10)  # type: ignore[arg-type]  # one of several

"""Servers other than E2B's own: E2B's as others host it, AgentENV, OpenKruise Agents, and one with few routes.

They run on plain HTTP at one address, where headers name the sandbox.
"""

import time
from collections.abc import Iterator
from operator import itemgetter
from types import SimpleNamespace

import pytest

from sandboxkit import Image, Operation, Session, errors
from sandboxkit.providers.e2b import E2BProvider, _machine, _stream
from sandboxkit.providers.e2b._provider import start_program
from tests.data_here import beside
from tests.e2b.server import emulator, prefix
from tests.e2b.test_pause import left
from tests.emulators._server import Server
from tests.hosted.vendor import eventually


@pytest.fixture(params=beside(__file__, "other_servers.toml")["servers"], ids=itemgetter("shape"))
def expected(request: pytest.FixtureRequest) -> SimpleNamespace:
    """The behaviour that the tests expect of one server."""
    return SimpleNamespace(**request.param)


@pytest.fixture
def server(expected: SimpleNamespace) -> Iterator[Server]:
    with emulator(expected.shape) as server:
        yield server


def test_a_server_of_ones_own_works_as_e2b_does(server: Server, expected: SimpleNamespace) -> None:
    with Session("e2b") as session, Session(E2BProvider()) as other:
        sandbox = session.sandbox(tags={"run": "a b", "flag": ""}, lifetime=120, public_ports=[80])
        assert sandbox.exec(["cat"], stdin=b"sent").result(30).stdout == "sent"
        sandbox.write_file("/workspace/file", b"x" * 300_000).result(30)
        assert len(sandbox.read_file("/workspace/file").result(30)) == 300_000
        denied = ["0.0.0.0/0"] if expected.denies else []
        assert server.state["networks"][0].get("denyOut") == denied

        found = sandbox.public_url(80).result(30)
        assert found.url == server.url
        assert found.headers["E2b-Sandbox-Id"] == sandbox.id

        session.sandbox(tags={"run": "other"}).start().result(30)
        (listed,) = other.list({"run": "a b", "flag": ""}).result(30)
        assert (listed.id, listed.tags["run"]) == (sandbox.id, "a b")
        theirs = other.from_id(listed.id).result(30)
        theirs.renew(400).result(30)
        assert 380 < left(sandbox.status().result(30)) < 420

        theirs.pause().result(60)
        with pytest.raises(errors.SandboxPausedError):
            sandbox.renew(300).result(60)
        with pytest.raises(
            (errors.SandboxPausedError, errors.OutcomeUnknownError), match="is paused"
        ):
            sandbox.exec(["true"]).result(60)
        sandbox.resume().result(60)
        assert left(sandbox.status().result(30)) > 100  # another process noted the lifetime
        assert sandbox.exec(["wc", "-c"], stdin=b"1").result(60).stdout == "1\n"

        with pytest.raises(errors.ImageNotFoundError, match="nowhere"):
            session.sandbox(image="nowhere").start().result(30)
        server.kill_sandboxes()
        with pytest.raises((errors.SandboxNotFoundError, errors.SandboxTerminatedError)):
            sandbox.exec(["true"]).result(60)
        with pytest.raises(errors.SandboxNotFoundError):
            theirs.renew(300).result(30)
        created = [each for each in server.requests if each.endswith("sandboxes")]
        newer = [each for each in created if "POST" in each and "/v2/" in each]
        assert len(newer) == 1  # its lack is remembered


def test_snapshots_work_or_are_refused_before_one_is_made(
    server: Server, expected: SimpleNamespace
) -> None:
    with Session("e2b") as session, session.sandbox() as sandbox:
        sandbox.write_file("/workspace/file", b"kept").result(30)
        if not expected.snapshots:
            with pytest.raises(errors.ConfigurationError, match=expected.name):
                sandbox.snapshot().result(60)
            assert f"POST {prefix(server)}/sandboxes/{sandbox.id}/snapshots" not in server.requests
            server.clear()
            with pytest.raises(errors.ConfigurationError, match=expected.name):
                Image().run("true").build(session._provider).result(60)
            assert not [each for each in server.requests if not each.startswith("GET ")]
            return
        snapshot = sandbox.snapshot().result(60)
        with session.sandbox(snapshot=snapshot) as fork:
            assert fork.read_file("/workspace/file").result(30) == b"kept"
        snapshot.delete().result(60)


def test_doctor_names_the_server(server: Server, expected: SimpleNamespace) -> None:
    with Session("e2b") as session:
        found = session.diagnose().result(30)
    assert found.available, found
    assert f"answers as {expected.name} does" in found.detail
    assert "lacks" not in found.detail
    assert ("snapshots" in found.detail) is not expected.snapshots
    assert ("pod" in found.isolation) is (expected.shape == "openkruise")


def test_a_missing_route_is_named_and_leaves_the_sandbox_as_it_was() -> None:
    with emulator("partial") as server, Session("e2b") as session:
        detail = session.diagnose().result(30).detail
        for lacked in ("pause()", "renew()", "snapshots"):
            assert lacked in detail
        assert "resume()" not in detail
        with session.sandbox(lifetime=300) as sandbox:
            sandbox.start().result(30)
            path = f"POST /sandboxes/{sandbox.id}"
            for call, route in (
                (sandbox.pause, "pause"),
                (lambda: sandbox.renew(400), "timeout"),
                (sandbox.snapshot, "snapshots"),
            ):
                with pytest.raises(errors.ConfigurationError, match=f"{path}/{route}: 501.*doctor"):
                    call().result(60)
            assert sandbox.exec(["echo", "runs"]).result(30).stdout == "runs\n"
        assert server.alive == []
        with pytest.raises(
            errors.ConfigurationError, match="/timeout: 501"
        ):  # nothing could renew it
            session.sandbox(lifetime=None).start().result(60)
        assert server.alive == []


def test_agentenvs_gateway_says_in_plain_text_that_a_sandbox_has_ended() -> None:
    with emulator("agentenv-cluster") as server, Session("e2b") as session:
        assert "answers as AgentENV does" in session.diagnose().result(30).detail
        sandbox = session.sandbox().start().result(30)
        server.kill_sandboxes()
        for call in (sandbox.status, lambda: sandbox.renew(300)):
            with pytest.raises(errors.SandboxNotFoundError):
                call().result(30)
        sandbox.stop().result(30)


def test_a_sandbox_whose_route_openkruise_lost_is_not_taken_for_deleted() -> None:
    with emulator("openkruise") as server, Session("e2b") as session:
        sandbox = session.sandbox().start().result(30)
        message = f"Sandbox route not found, maybe it is crashed or killed: {sandbox.id}"
        path = f"DELETE {prefix(server)}/sandboxes/{sandbox.id}"
        server.fault(path, "status", status=404, body={"code": 404, "message": message})
        box = session._provider.box(str(sandbox.id))
        with pytest.raises(errors.ProviderUnavailableError, match="still lists it"):
            Operation(box.delete()).result(30)
        server.clear()
        Operation(box.delete()).result(30)
        assert server.alive == []
        Operation(box.delete()).result(30)  # the same status, and it is gone


def test_a_user_that_the_template_lacks_is_an_error_with_the_remedy() -> None:
    with (
        emulator("openkruise"),
        Session("e2b") as session,
        pytest.raises(errors.SandboxStartError, match=r'no user "nobody-here".*user='),
    ):
        session.sandbox(user="nobody-here").start().result(30)


def test_a_daemon_that_cannot_close_stdin_lets_programs_read_their_last_input() -> None:
    provider = E2BProvider()
    with emulator("openkruise") as server, Session(provider) as session:
        sandbox = session.sandbox().start().result(30)
        machine = provider.box(str(sandbox.id)).machine
        assert machine is not None
        before = server.state["programs"]

        async def talk() -> None:
            script = "sleep 0.3; cd /workspace; head -c 1000 >part && mv part whole"
            program = await start_program(machine, ("sh", "-c", f"{script}; exec sleep 1000"))
            await program.send(b"x" * 1000)
            await program.aclose()

        Operation(talk()).result(30)
        eventually(lambda: server.state["programs"] == before)
        assert sandbox.read_file("/workspace/whole").result(30) == b"x" * 1000


def test_keepalives_are_frequent_enough_for_agentenv(monkeypatch: pytest.MonkeyPatch) -> None:
    faster = 15
    monkeypatch.setattr(_stream, "KEEP_ALIVE", _machine.KEEP_ALIVE / faster)
    with emulator("agentenv") as server, Session("e2b") as session:
        server.set(idle=30 / faster)
        sandbox = session.sandbox().start().result(30)
        before = server.requests
        time.sleep(3 * 30 / faster)
        assert sandbox.exec(["echo", "there"]).result(30).stdout == "there\n"
        assert server.requests == before  # the connection is still the first one


def test_an_api_without_an_address_for_sandboxes_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with emulator("agentenv") as server:
        monkeypatch.delenv("E2B_SANDBOX_URL")
        with pytest.raises(errors.ConfigurationError, match="set E2B_SANDBOX_URL"):
            Session("e2b")
        for domain in ("example.test:8443", "example.test"):
            monkeypatch.setenv("E2B_DOMAIN", domain)
            Session("e2b").close().result(30)
        assert server.requests == []

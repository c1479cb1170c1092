"""No program of one sandbox, however it behaves, keeps files, threads or connections from the others."""

import contextlib
import os
import resource
import socket
import threading

import pytest

from sandboxkit import Credential, Session
from sandboxkit.egress import _proxy
from tests.egress import conftest as egress
from tests.egress.conftest import DEADLINE, PROGRAMS, World, asked, out
from tests.egress.test_attacks import hello


def test_a_program_that_gave_up_is_cut_off_and_one_that_still_reads_is_answered(
    provider: str, world: World, secure: egress.Origin, authority: egress.Authority
) -> None:
    world.origin.hold = secure.hold = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as silent:
        mute, tunnel = f"web.test:{silent.getsockname()[1]}", f"web.test:{secure.port}"
        api = Credential(f"api.test:{secure.port}", {"A": "b"})
        network = world.rules(world.web, tunnel, mute, credentials=[api], tls=authority.client)
        files = {"/tmp/ca.pem": authority.certificate.read_bytes()}
        with Session(provider, network=network, files=files) as session:
            sandbox = session.sandbox()
            program = ["python3", "-c", PROGRAMS["half_closed"]]
            direct = f"GET /2 HTTP/1.1\r\nHost: {tunnel}\r\nConnection: close\r\n\r\n"
            half = [("", asked(world.web, "/0")), ("", asked("api.test.internal", "/1"))]
            reading = [sandbox.exec([*program, *each]) for each in (*half, (tunnel, direct))]
            for request in (asked(mute), f"CONNECT {mute} HTTP/1.1\r\n\r\n"):
                out(sandbox, PROGRAMS["give_up"], request, hello("web.test").hex())
            world.records.wait(2)
            secure.hold.set()
            said = [each.result(DEADLINE).stdout for each in reading]
            assert said == [f"origin:/{number}:\n" for number in range(3)]
    gone = "the program closed the connection before it was answered"
    assert [record.reason for record in world.records[:2]] == [gone] * 2


def test_a_sandbox_that_wants_every_file_leaves_some_to_others_and_to_starts(world: World) -> None:
    with socket.create_server(("127.0.0.1", 0), backlog=128) as server:
        name = f"web.test:{server.getsockname()[1]}"
        with Session("local", network=world.rules(name, world.web)) as session:
            greedy, other = session.sandbox().start().result(DEADLINE), session.sandbox()
            assert out(other, PROGRAMS["get"], world.url) == "origin:/:"
            soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
            lowest = os.dup(server.fileno())
            os.close(lowest)
            resource.setrlimit(resource.RLIMIT_NOFILE, (lowest + 100, hard))
            try:
                greed = greedy.exec(["python3", "-c", PROGRAMS["ask_all"], *[name] * 100])
                taken = [server.accept()[0] for _ in range(6)]
                assert out(other, PROGRAMS["get"], world.url) == "origin:/:"
                assert session.run(["echo", "works"]).result(DEADLINE).stdout == "works\n"
                server.settimeout(0)
                with contextlib.suppress(BlockingIOError):
                    while len(taken) < 50:
                        taken.append(server.accept()[0])
                assert len(taken) < 50
                server.settimeout(DEADLINE)
                for number in range(100):  # the others wait for their turn
                    taken += [server.accept()[0]] if number >= len(taken) else []
                    taken[number].close()
                assert greed.result(DEADLINE).stdout.split() == ["502"] * 100
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_lookup_that_was_given_up_keeps_its_thread_and_blocks_no_other_sandbox(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_proxy, "_RESOLVE_SECONDS", 0.5)
    rules = world.rules("*.slow.test", world.web)
    with egress.slow_names(DEADLINE) as (gate, inside), Session("local", network=rules) as session:
        asking, other = session.sandbox(), session.sandbox()
        names = [f"n{number}.slow.test" for number in range(40)]
        try:
            assert out(asking, PROGRAMS["ask_all"], *names).split() == ["502"] * 40
            assert out(other, PROGRAMS["get"], world.url) == "origin:/:"
            assert len(inside) == 8
        finally:
            gate.set()
    assert "no answer within 0.5 s" in world.records[0].reason


def test_a_result_names_the_servers_that_were_refused_meanwhile(
    provider: str, world: World
) -> None:
    look = PROGRAMS["try_get"]
    with Session(provider, network=world.rules()) as session, session.sandbox() as sandbox:
        done = sandbox.exec(["python3", "-c", look, "http://other.test/"]).result(DEADLINE)
        assert done.refused == ("other.test:80",)
        assert "no rule allows other.test:80" in done.stdout
        assert sandbox.exec(["python3", "-c", look, world.url]).result(DEADLINE).refused == ()
        stays = sandbox.exec(["sh", "-c", f"python3 -c '{look}' https://api.test/; sleep 600"])
        world.records.wait(3)
        stays.kill()
        assert stays.result(DEADLINE).refused == ("api.test:443",)

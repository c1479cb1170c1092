"""What one sandbox takes: no program, however it behaves, keeps files, threads or connections from the others."""

import os
import resource
import socket
import threading
from typing import Any

import pytest

from sandboxkit import Credential, Session
from sandboxkit.egress import _resolve
from tests.egress.conftest import (
    DEADLINE,
    PROGRAMS,
    Authority,
    QuietHandler,
    World,
    asked,
    out,
    serving,
)
from tests.egress.test_attacks import hello


def test_a_program_that_gave_up_is_cut_off_and_one_that_still_reads_is_answered(
    provider: str, world: World, authority: Authority
) -> None:
    arrived, gone = threading.Semaphore(0), threading.Event()

    class Handler(QuietHandler):
        def do_GET(self) -> None:
            arrived.release()
            if self.path == "/given-up":
                assert self.connection.recv(1) == b""
                gone.set()
            else:
                assert gone.wait(DEADLINE)
                self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 8\r\n\r\nanswered")
            self.close_connection = True

    with (
        serving(Handler) as plain,
        serving(Handler, authority.server) as tls,
        socket.create_server(("127.0.0.1", 0)) as silent,
    ):
        web, tunnel = f"web.test:{plain}", f"web.test:{tls}"
        mute = f"web.test:{silent.getsockname()[1]}"
        network = world.rules(
            *(web, tunnel, mute),
            credentials=[Credential(f"api.test:{tls}", {"A": "b"})],
            tls=authority.client,
        )
        files = {"/tmp/ca.pem": authority.certificate.read_bytes()}
        with Session(provider, network=network, files=files) as session:
            sandbox = session.sandbox()
            program = ["python3", "-c", PROGRAMS["half_closed"]]
            through = asked(tunnel).replace(f"http://{tunnel}", "")
            internal = asked("api.test.internal", "/v1/models")
            half = [("", asked(web)), ("", internal), (tunnel, through)]
            reading = [sandbox.exec([*program, *each], check=True) for each in half]
            for _ in half:
                assert arrived.acquire(timeout=DEADLINE)
            for request in (asked(web, "/given-up"), f"CONNECT {mute} HTTP/1.1\r\n\r\n"):
                out(sandbox, PROGRAMS["give_up"], request, hello("web.test").hex())
            said = [each.result(DEADLINE).stdout for each in reading]
            assert said == ["answered\n"] * 3
            world.records.wait(5)
    reasons = sorted(record.reason for record in world.records)
    assert reasons == [
        "",
        "",
        "",
        *["the program closed the connection before it was answered"] * 2,
    ]


def test_a_sandbox_that_wants_every_file_leaves_some_to_others_and_to_starts(world: World) -> None:
    taken: list[socket.socket] = []
    enough, done = threading.Event(), threading.Event()

    def accept() -> None:
        while True:
            try:
                taken.append(server.accept()[0])
            except OSError:
                return
            if len(taken) > 5:
                enough.set()
            if done.is_set():
                taken[-1].close()

    with socket.create_server(("127.0.0.1", 0), backlog=128) as server:
        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        name = f"web.test:{server.getsockname()[1]}"
        with Session("local", network=world.rules(name, world.web)) as session:
            greedy, other = session.sandbox().start().result(DEADLINE), session.sandbox()
            assert out(other, PROGRAMS["get"], world.url) == "origin:/:"
            soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
            lowest = os.dup(server.fileno())
            os.close(lowest)
            resource.setrlimit(resource.RLIMIT_NOFILE, (lowest + 100, hard))
            try:
                all_of_them = ["python3", "-c", PROGRAMS["ask_all"], *[name] * 100]
                greed = greedy.exec(all_of_them, check=True)
                assert enough.wait(DEADLINE)
                assert out(other, PROGRAMS["get"], world.url) == "origin:/:"
                assert session.run(["echo", "works"]).result(DEADLINE).stdout == "works\n"
                assert len(taken) < 50
                done.set()
                for each in taken[:]:
                    each.close()
                assert greed.result(DEADLINE).stdout.split() == ["502"] * 100
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        server.shutdown(socket.SHUT_RDWR)
        thread.join(DEADLINE)


def test_a_lookup_that_was_given_up_keeps_its_thread_and_blocks_no_other_sandbox(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, inside, real = threading.Event(), set[int](), socket.getaddrinfo

    def slow(host: str, *more: Any, **options: Any) -> list[Any]:
        if host.endswith(".slow.test"):
            inside.add(threading.get_ident())
            gate.wait(DEADLINE)
        return list(real(host, *more, **options))

    monkeypatch.setattr(socket, "getaddrinfo", slow)
    monkeypatch.setattr(_resolve, "_RESOLVE_SECONDS", 0.5)
    with Session("local", network=world.rules("*.slow.test", world.web)) as session:
        asking, other = session.sandbox(), session.sandbox()
        names = [f"n{number}.slow.test" for number in range(40)]
        try:
            assert out(asking, PROGRAMS["ask_all"], *names).split() == ["502"] * 40
            assert out(other, PROGRAMS["get"], world.url) == "origin:/:"
            assert len(inside) == 8
        finally:
            gate.set()
    assert "no answer within 0.5 s" in world.records.wait(40).reason or world.records[-1].allowed


def test_a_result_names_the_servers_that_were_refused_meanwhile(
    provider: str, world: World
) -> None:
    look = ["python3", "-c", PROGRAMS["try_get"]]
    with Session(provider, network=world.rules()) as session, session.sandbox() as sandbox:
        done = sandbox.exec([*look, "http://other.test/"], check=True).result(DEADLINE)
        assert done.refused == ("other.test:80",)
        assert "no rule allows other.test:80" in done.stdout
        assert sandbox.exec([*look, world.url]).result(DEADLINE).refused == ()
        url = "https://api.test/"
        stays = sandbox.exec(["sh", "-c", f"python3 -c '{PROGRAMS['try_get']}' {url}; sleep 600"])
        world.records.wait(3)
        stays.kill()
        assert stays.result(DEADLINE).refused == ("api.test:443",)

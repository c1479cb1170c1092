"""Ports of local sandboxes: a reset in a pool closes them, and the next job starts clean."""

import socket

import pytest

from sandboxkit import Session
from sandboxkit.testing.conformance.ports import _ECHO

DEADLINE = 60.0


def test_a_reset_of_a_pooled_sandbox_closes_its_ports() -> None:
    with Session("local", pool=1, reuse="reset", profile="strict") as session:
        first = session.sandbox().start().result(DEADLINE)
        server = first.exec(["python3", "-c", _ECHO])
        port = int(next(iter(server.stdout.lines())))
        exposed = first.expose(port).result(DEADLINE)
        served = first.serve(0, "127.0.0.1:9").result(DEADLINE)
        connection = first.connect(port).result(DEADLINE)
        connection.send(b"x").result(DEADLINE)
        assert connection.receive().result(DEADLINE) == b"x"
        with socket.create_connection(("127.0.0.1", exposed.port), DEADLINE) as client:
            client.sendall(b"x")
            assert client.recv(1) == b"x"
            first.stop().result(DEADLINE)
            with pytest.raises(ConnectionResetError):
                client.recv(1)
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", exposed.port), DEADLINE)
        with pytest.raises(ConnectionAbortedError):
            connection.receive().result(DEADLINE)
        second = session.sandbox().start().result(DEADLINE)
        assert second.id == first.id  # the reset found nothing left
        assert second.serve(served.port, "127.0.0.1:9").result(DEADLINE).port == served.port


def test_a_connection_that_was_reset_says_so_each_time() -> None:
    with Session("local") as session, session.sandbox() as sandbox:
        served = sandbox.serve(0, "127.0.0.1:9").result(DEADLINE)  # nothing listens there
        connection = sandbox.connect(served.port).result(DEADLINE)
        for _ in range(2):
            with pytest.raises(ConnectionResetError):
                connection.receive().result(DEADLINE)

"""The emulator ends with its standard input, whatever it is doing."""

import socket
import time
import urllib.request
from collections.abc import Callable
from unittest import mock
from urllib.parse import urlsplit

import pytest

from sandboxkit import Operation, Sandbox, Session
from sandboxkit.providers.daytona import DaytonaProvider
from tests.daytona.server import KEY, environment
from tests.emulators._server import Server

Begin = Callable[[Server, Session, Sandbox], object]


def _run(server: Server, session: Session, sandbox: Sandbox) -> object:
    process = sandbox.exec(["sh", "-c", "while echo up; do :; done"])
    next(iter(process.stdout.lines()))
    return process


def _start(server: Server, session: Session, sandbox: Sandbox) -> object:
    headers = {"Authorization": f"Bearer {KEY}"}
    for _ in range(4):
        asked = urllib.request.Request(f"{server.url}/api/sandbox", b"{}", headers)
        urllib.request.urlopen(asked, timeout=30).close()
    return None


def _stall(server: Server, session: Session, sandbox: Sandbox) -> object:
    server.fault("/api/sandbox", "stall")
    return session.list()


def _upload(server: Server, session: Session, sandbox: Sandbox) -> object:
    where = urlsplit(server.url)
    assert where.hostname is not None
    assert where.port is not None
    connection = socket.create_connection((where.hostname, where.port))
    head = (
        f"POST /toolbox/{sandbox.id}/files/upload-v2?path=/workspace/f HTTP/1.1\r\nHost: x\r\n"
        f"Authorization: Bearer {KEY}\r\nContent-Type: application/octet-stream\r\n"
        "Content-Length: 1000000\r\n\r\nthe first of it"
    )
    connection.sendall(head.encode())
    return connection


@pytest.mark.parametrize("begin", [_run, _start, _stall, _upload])
def test_it_ends(begin: Begin) -> None:
    server = Server("tests.emulators.daytona")
    with server, mock.patch.dict("os.environ", environment(server)):
        provider = DaytonaProvider(timeout=5)
        session = Session(provider)
        begun = begin(server, session, session.sandbox().start().result(60))
        time.sleep(0.2)  # it is in the middle of it
    assert server._process.returncode == 0
    session.close().exception(60)  # nobody is there
    Operation(provider.aclose()).exception(60)
    if isinstance(begun, socket.socket):
        begun.close()

"""A name is looked up once for a connection: what is checked is what is dialled."""

import socket

import pytest

from sandboxkit import Egress
from sandboxkit.egress._resolve import addresses


@pytest.mark.anyio
async def test_a_name_is_looked_up_once(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter(["1.1.1.1", "169.254.169.254"])

    def look_up(*_: object, **__: object) -> list[tuple[object, ...]]:
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (next(answers), 443))]

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    found = await addresses("a sandbox", Egress(allow=["a.test"]), "a.test", 443)
    assert found == ["1.1.1.1"]

"""Answers that are not the daemon's own: each is a typed error, whatever reads it."""

import re

import pytest

from sandboxkit.errors import ProviderUnavailableError, SandboxError
from sandboxkit.providers.docker import DockerProvider
from sandboxkit.types import SandboxSpec
from tests.docker.conftest import SOCKET, until_gone
from tests.faults import Fault, FaultProxy, Half, HttpAnswer, Request

pytestmark = pytest.mark.anyio

REQUESTS = {
    "version": "GET .*/version",
    "info": "GET .*/info",
    "image": "GET .*/images/",
    "volume": "GET .*/volumes/",
    "create": "POST .*/containers/create",
    "attach": "POST .*/attach",
    "start": "POST .*/start",
    "list": "GET .*/containers/json",
    "inspect": "GET .*/containers/[^/]*/json",
    "delete": "(DELETE .*/containers/|POST .*/wait)",
}
BODIES = {
    "no message": b"{}",
    "message of another type": b'{"message": 3}',
    "a list": b"[]",
    "a number": b"7",
    "null": b"null",
    "nothing": b"",
    "a page": b"<html>no gateway</html>",
    "a half": b'{"message": "unf',
    "no text": b"\xff\xfe\x00",
}


async def lives(provider: DockerProvider, tag: str) -> None:
    """All that a provider asks of its daemon."""
    sandbox_id = await provider.create(SandboxSpec(tags={"test": tag}))
    try:
        assert [info.id async for info in provider.list({"test": tag})] == [sandbox_id]
        await provider.get(sandbox_id)
    finally:
        await provider.delete(sandbox_id)


async def meets(tag: str, where: str, fault: Fault) -> SandboxError:
    def plan(request: Request) -> Fault | None:
        return fault if re.match(REQUESTS[where], request.line) else None

    with FaultProxy(f"unix://{SOCKET}", plan=plan) as proxy:
        provider = DockerProvider(base_url=proxy.url, timeout=3)
        with pytest.raises(SandboxError) as caught:
            await lives(provider, tag)
        assert proxy.faults
        proxy.plan = None
        await provider.aclose()
        await until_gone(provider, tag)
        await provider.aclose()
    return caught.value


@pytest.mark.parametrize(
    ("where", "body"),
    [("image", body) for body in BODIES]
    + [(where, "no message") for where in REQUESTS if where != "delete"],
)
async def test_a_server_error_with_an_odd_body_is_unavailable(
    daemon: None, tag: str, where: str, body: str
) -> None:
    error = await meets(tag, where, HttpAnswer(500, BODIES[body]))
    assert isinstance(error, ProviderUnavailableError), error


@pytest.mark.parametrize(
    ("where", "status"),
    [
        (where, status)
        for number, where in enumerate(["version", "info", "image", "create", "inspect", "list"])
        for status in ([200, 404], [400, 503])[number % 2]
    ],
)
async def test_any_status_with_an_odd_body_is_a_typed_error(
    daemon: None, tag: str, where: str, status: int
) -> None:
    """Each request is answered with two of the four."""
    await meets(tag, where, HttpAnswer(status, BODIES["no message"]))


@pytest.mark.parametrize("where", REQUESTS)
async def test_an_answer_that_breaks_off_is_a_typed_error(
    daemon: None, tag: str, where: str
) -> None:
    await meets(tag, where, Half(5))

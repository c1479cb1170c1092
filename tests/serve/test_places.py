"""A service without tokens serves this machine's loopback, and nothing that a web page elsewhere can send."""

from collections.abc import Mapping

import httpx
import pytest

from sandboxkit.integrations.serve import ServiceConfig, create_app
from sandboxkit.integrations.serve._tokens import Token
from sandboxkit.testing import FakeProvider
from tests.data_here import beside

pytestmark = pytest.mark.anyio
GIVEN = beside(__file__, "requests.toml")
TOKEN = Token("someone", "s" * 32)


async def status(headers: Mapping[str, str], *tokens: Token) -> int:
    """Ask for the list of sandboxes and return the response's status."""
    app = create_app(ServiceConfig(provider=FakeProvider(), tokens=tokens))
    async with app.router.lifespan_context(app):
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            return (await client.get("/v1/sandboxes", headers=headers)).status_code


@pytest.mark.parametrize("host", GIVEN["loopback"])
async def test_a_name_of_the_loopback_is_served(host: str) -> None:
    assert await status({"Host": host}) == 200
    assert await status({"Host": host, "Origin": f"http://{host}"}) == 200


@pytest.mark.parametrize("headers", GIVEN["pages"], ids=str)
async def test_another_host_or_a_page_of_another_origin_is_refused(headers: dict[str, str]) -> None:
    assert await status(headers) == 403


async def test_with_tokens_the_token_decides(anyio_backend: str) -> None:
    headers = {"Host": "sandboxes.example"}
    assert await status(headers, TOKEN) == 401
    assert await status({**headers, "Authorization": f"Bearer {TOKEN.secret}"}, TOKEN) == 200

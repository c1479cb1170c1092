"""Logins to a registry: what docker's configuration holds, and what a token service answers."""

import base64
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import aiohttp
import pytest

from sandboxkit.errors import (
    AuthenticationError,
    ConfigurationError,
    ProviderUnavailableError,
    SandboxError,
)
from sandboxkit.providers.kubernetes._registry_login import authorization

pytestmark = pytest.mark.anyio


class TokenService(BaseHTTPRequestHandler):
    """Answers as a registry's token service does."""

    answer: ClassVar[tuple[int, str]]
    asked: ClassVar[list[tuple[str, str]]] = []

    def do_GET(self) -> None:
        self.asked.append((self.path, self.headers["Authorization"]))
        status, text = self.answer
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, format: str, *args: object) -> None: ...


@pytest.fixture
def challenge() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), TokenService) as server:
        threading.Thread(target=server.serve_forever).start()
        try:
            realm = f"http://127.0.0.1:{server.server_port}/token"
            yield f'Bearer realm="{realm}",service="registry",scope="repository:a/b:pull,push"'
        finally:
            server.shutdown()


async def login(challenge: str) -> str:
    async with aiohttp.ClientSession() as session:
        return await authorization(session, "registry.example", challenge)


async def test_a_token_service_is_asked_and_its_failures_are_its_own(
    challenge: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    auth = base64.b64encode(b"user:secret").decode()
    config = {"auths": {"registry.example": {"auth": auth}}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    TokenService.answer = 200, json.dumps({"token": "t"})
    assert await login(challenge) == "Bearer t"
    path, header = TokenService.asked[-1]
    assert path == "/token?service=registry&scope=repository:a/b:pull,push"
    assert header == f"Basic {auth}"
    for status, kind in (
        (401, AuthenticationError),
        (429, ProviderUnavailableError),
        (503, ProviderUnavailableError),
    ):
        TokenService.answer = status, "<html>"
        with pytest.raises(SandboxError, match=f"HTTP {status}") as caught:
            await login(challenge)
        assert type(caught.value) is kind


async def test_a_configuration_that_cannot_be_read_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    with pytest.raises(AuthenticationError, match="no credentials"):
        await login("Basic")
    program = tmp_path / "docker-credential-test"
    program.write_text("#!/bin/sh\necho no JSON\n")
    program.chmod(0o755)
    named = {"credHelpers": {"registry.example": "test"}}
    for content in ("[]", "{", json.dumps(named), '{"auths": {"registry.example": {"auth": "é"}}}'):
        (tmp_path / "config.json").write_text(content)
        with pytest.raises(ConfigurationError, match=r"config\.json: .*docker login"):
            await login("Basic")
        monkeypatch.setenv("PATH", str(tmp_path), prepend=":")

"""Logins to a registry: what docker's configuration holds, and what a token service answers."""

import base64
import json
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from sandboxkit.errors import (
    AuthenticationError,
    ConfigurationError,
    ProviderUnavailableError,
    SandboxError,
)
from sandboxkit.providers.kubernetes._registry_login import authorization
from tests.kubernetes.answers import answering

pytestmark = pytest.mark.anyio


async def login(challenge: str) -> str:
    async with aiohttp.ClientSession() as session:
        return await authorization(session, "registry.example", challenge)


async def test_a_token_service_is_asked_and_its_failures_are_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
    auth = base64.b64encode(b"user:secret").decode()
    config = {"auths": {"registry.example": {"auth": auth}}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    said = 200, json.dumps({"token": "t"})

    async def answer(request: web.Request) -> web.StreamResponse:
        assert request.path == "/token"
        return web.Response(status=said[0], text=said[1])

    async with answering(answer, tmp_path) as (answers, _):
        scope = {"service": "registry", "scope": "repository:a/b:pull,push"}
        words = ",".join(f'{name}="{value}"' for name, value in scope.items())
        challenge = f'Bearer realm="{answers.server}/token",{words}'
        assert await login(challenge) == "Bearer t"
        assert answers.asked == [scope]
        assert answers.headers[0]["Authorization"] == f"Basic {auth}"
        for status, kind in (
            (401, AuthenticationError),
            (429, ProviderUnavailableError),
            (503, ProviderUnavailableError),
        ):
            said = status, "<html>"
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

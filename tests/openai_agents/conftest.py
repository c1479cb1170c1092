"""The SDK's sandbox sessions, on the local provider; nothing is traced, nothing goes anywhere."""

import io
from collections.abc import AsyncIterator

import anyio
import pytest
from agents import set_tracing_disabled
from agents.sandbox import Manifest
from agents.sandbox.manifest import Environment
from agents.sandbox.session import SandboxSession
from agents.sandbox.types import ExecResult

from sandboxkit import Session
from sandboxkit.integrations.openai_agents import SandboxkitClient


@pytest.fixture(autouse=True)
def _untraced() -> None:
    set_tracing_disabled(True)


@pytest.fixture
async def session(anyio_backend: str) -> AsyncIterator[Session]:
    """A Session that must have no sandbox left when its test is over."""
    async with Session("local", tags="test:agents", env={"FROM": "the session"}) as session:
        yield session
        with anyio.fail_after(120):
            while await living(session):
                await anyio.sleep(0.05)


@pytest.fixture
async def sandbox(session: Session) -> AsyncIterator[SandboxSession]:
    client = SandboxkitClient(session)
    manifest = Manifest(environment=Environment(value={"GIVEN": "by the manifest"}))
    async with await client.create(manifest=manifest) as sandbox:
        yield sandbox


async def living(session: Session) -> list[str]:
    infos = await session.list()
    return [info.id for info in infos if info.tags.get("sandboxkit.session") == session.id]


def outcome(result: ExecResult) -> tuple[int, str, str]:
    return result.exit_code, result.stdout.decode(), result.stderr.decode()


def data(text: str) -> io.BytesIO:
    return io.BytesIO(text.encode())

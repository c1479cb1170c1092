"""What a start costs at a distance: how often it waits for the vendor or the agent."""

import base64
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, suppress
from pathlib import Path

import pytest
from anyio.abc import ByteStream

from sandboxkit import _registry
from sandboxkit.providers._hosted.agent import HostedInstance
from sandboxkit.providers._hosted.baking import BakingProvider
from sandboxkit.types import Command, SandboxSpec
from tests.daytona.server import emulator as daytona
from tests.e2b.server import emulator as e2b
from tests.emulators.modal.client import modal_emulator as modal

pytestmark = pytest.mark.anyio

EMULATORS: dict[str, Callable[[], AbstractContextManager[object]]] = {
    "e2b": e2b,
    "daytona": daytona,
    "modal": modal,
}
SECRET = "a secret of the user's"


@pytest.fixture(scope="module", params=sorted(EMULATORS))
def vendor(request: pytest.FixtureRequest) -> Iterator[str]:
    with EMULATORS[request.param]():
        yield request.param


@pytest.fixture
async def provider(
    anyio_backend: str, vendor: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[BakingProvider[HostedInstance]]:
    """A provider with a baked image."""
    tmp_path.chmod(0o700)
    monkeypatch.setenv("SANDBOXKIT_STATE_DIR", str(tmp_path))
    provider = _registry.load(vendor)
    assert isinstance(provider, BakingProvider)
    await provider.bake(None)
    yield provider
    await provider.aclose()


class Recorded(ByteStream):
    """A program's stream that counts what is sent on it."""

    def __init__(self, stream: ByteStream) -> None:
        self._stream = stream
        self.sent = 0

    async def receive(self, max_bytes: int = 65536) -> bytes:
        return await self._stream.receive(max_bytes)

    async def send(self, item: bytes) -> None:
        self.sent += len(item)
        await self._stream.send(item)

    async def send_eof(self) -> None:
        await self._stream.send_eof()

    async def aclose(self) -> None:
        await self._stream.aclose()


@pytest.fixture
def runs(
    provider: BakingProvider[HostedInstance], monkeypatch: pytest.MonkeyPatch
) -> list[tuple[tuple[str, ...], Recorded]]:
    """The programs that the provider runs, and their streams."""
    run, found = provider._run, list[tuple[tuple[str, ...], Recorded]]()

    async def recorded(sandbox_id: str, argv: tuple[str, ...]) -> ByteStream:
        stream = Recorded(await run(sandbox_id, argv))
        found.append((argv, stream))
        return stream

    monkeypatch.setattr(provider, "_run", recorded)
    return found


class Printed:
    """Collects a command's stdout."""

    def __init__(self) -> None:
        self.text = b""

    async def __call__(self, stream: object, data: bytes) -> None:
        self.text += data


def decoded(argv: tuple[str, ...]) -> Iterator[bytes]:
    """Each argument, and what it says in base64."""
    for word in argv:
        yield word.encode()
        with suppress(ValueError):
            yield base64.b64decode(word, validate=True)


async def test_the_request_that_starts_a_baked_agent_has_all_that_the_agent_needs(
    provider: BakingProvider[HostedInstance], runs: list[tuple[tuple[str, ...], Recorded]]
) -> None:
    sandbox_id = await provider.create(SandboxSpec(env={"A": "1"}, lifetime=600))
    try:
        assert [stream.sent for _, stream in runs] == [0]
        printed = Printed()
        script = (
            'echo "$A ${SANDBOXKIT_FIRST-no}"; grep -l -a SANDBOXKIT_FIRST /proc/[0-9]*/cmdline'
        )
        await provider.exec(sandbox_id, Command(("sh", "-c", script)), printed)
        mine = printed.text.splitlines()
        assert mine[0] == b"1 no"
        assert len(mine) <= 3  # the command's own shell, and grep
        assert len(runs) == 1
    finally:
        await provider.delete(sandbox_id)


async def test_secrets_are_sent_on_the_stream_because_vendors_log_command_lines(
    provider: BakingProvider[HostedInstance], runs: list[tuple[tuple[str, ...], Recorded]]
) -> None:
    sandbox_id = await provider.create(SandboxSpec(secrets={"KEY": SECRET}, lifetime=600))
    try:
        [(argv, stream)] = runs
        assert stream.sent > len(SECRET)
        assert SECRET.encode() not in b"".join(decoded(argv))
        printed = Printed()
        await provider.exec(sandbox_id, Command(("sh", "-c", 'echo "$KEY"')), printed)
        assert printed.text.decode() == f"{SECRET}\n"
    finally:
        await provider.delete(sandbox_id)


async def test_an_environment_too_large_for_a_command_line_is_sent_on_the_stream(
    provider: BakingProvider[HostedInstance], runs: list[tuple[tuple[str, ...], Recorded]]
) -> None:
    large = "x" * 70_000
    sandbox_id = await provider.create(SandboxSpec(env={"LARGE": large}, lifetime=600))
    try:
        [(_, stream)] = runs
        assert stream.sent > len(large)
        printed = Printed()
        await provider.exec(sandbox_id, Command(("sh", "-c", "echo ${#LARGE}")), printed)
        assert printed.text == b"70000\n"
    finally:
        await provider.delete(sandbox_id)

"""The daemon's hijacked streams: frames, half-close, both kinds of socket."""

import itertools
import os
import secrets
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import anyio
import anyio.abc
import pytest
from docker import APIClient  # type: ignore[import-untyped]  # the package ships no types
from hypothesis import given
from hypothesis import strategies as st

from sandboxkit.errors import SandboxNotFoundError
from sandboxkit.providers.docker._daemon import Daemon
from sandboxkit.providers.docker._endpoint import Endpoint
from sandboxkit.providers.docker._stream import AttachStream
from tests.docker.tcp_bridge import TcpBridge

pytestmark = pytest.mark.anyio


class Chunks(anyio.abc.ByteStream):
    """A byte stream that arrives in given pieces."""

    def __init__(self, pieces: list[bytes]) -> None:
        self._pieces = [piece for piece in pieces if piece]

    async def receive(self, max_bytes: int = 65536) -> bytes:
        if not self._pieces:
            raise anyio.EndOfStream
        return self._pieces.pop(0)

    async def send(self, item: bytes) -> None: ...

    async def send_eof(self) -> None: ...

    async def aclose(self) -> None: ...

    @property
    def extra_attributes(self) -> Mapping[Any, Callable[[], Any]]:  # anyio's own signature
        return {}


async def _read_all(stream: AttachStream, max_bytes: int = 65536) -> bytes:
    data = b""
    try:
        while True:
            piece = await stream.receive(max_bytes)
            assert 0 < len(piece) <= max_bytes
            data += piece
    except anyio.EndOfStream:
        return data


@given(
    frames=st.lists(st.tuples(st.sampled_from([1, 2]), st.binary(max_size=40)), max_size=12),
    cuts=st.lists(st.integers(0, 400), max_size=20),
    max_bytes=st.integers(1, 64),
)
def test_frames_are_joined_from_any_split_of_the_stream(
    frames: list[tuple[int, bytes]], cuts: list[int], max_bytes: int
) -> None:
    wire = b"".join(
        bytes([kind, 0, 0, 0]) + len(data).to_bytes(4, "big") + data for kind, data in frames
    )
    edges = [0, *sorted(cut for cut in cuts if cut < len(wire)), len(wire)]
    pieces = [wire[a:b] for a, b in itertools.pairwise(edges)]

    async def read() -> tuple[bytes, str]:
        stream = AttachStream(Chunks(pieces[1:]), pieces[0])
        return await _read_all(stream, max_bytes), stream._stderr.decode("latin1")

    stdout, stderr = anyio.run(read)
    assert stdout == b"".join(data for kind, data in frames if kind == 1)
    assert stderr == b"".join(data for kind, data in frames if kind == 2).decode("latin1")


async def test_an_unknown_frame_breaks_the_stream() -> None:
    stream = AttachStream(Chunks([b"HTTP/1.1 500 no\r\n\r\n"]), b"")
    with pytest.raises(anyio.BrokenResourceError, match="unknown kind"):
        await stream.receive()


@pytest.fixture(params=["unix", "tcp"])
async def control(
    request: pytest.FixtureRequest, bridge: TcpBridge, anyio_backend: str
) -> AsyncIterator[Daemon]:
    url = bridge.url if request.param == "tcp" else "unix:///var/run/docker.sock"
    daemon = Daemon(Endpoint.parse(url), timeout=30)
    yield daemon
    await daemon.aclose()


@pytest.fixture
async def container(control: Daemon) -> AsyncIterator[str]:
    """A created container that copies its input to its output."""
    name = f"stream-{secrets.token_hex(8)}"

    def create(api: APIClient) -> None:
        body = {
            "Image": os.environ["SANDBOXKIT_DOCKER_IMAGE"],
            "Entrypoint": ["sh", "-c", "echo ready >&2; cat"],
            "OpenStdin": True,
            "StdinOnce": True,
            "AttachStdin": True,
            "HostConfig": {"NetworkMode": "none", "LogConfig": {"Type": "none"}},
        }
        api.create_container_from_config(body, name)

    await control.call(create, what="create")
    yield name
    await control.call(lambda api: api.remove_container(name, force=True), what="remove")


async def test_bytes_come_back_exactly_and_half_close_ends_the_process(
    control: Daemon, container: str
) -> None:
    data = os.urandom(3_000_001)
    path = f"/containers/{container}/attach?stream=1&stdin=1&stdout=1&stderr=1"
    stream = await control.stream(path)
    await control.call(lambda api: api.start(container), what="start")
    received = b""
    async with stream, anyio.create_task_group() as tasks:
        with anyio.fail_after(60):

            async def feed() -> None:
                await stream.send(data)
                await stream.send_eof()

            tasks.start_soon(feed)
            received = await _read_all(stream)
    assert received == data
    assert stream.stderr == "ready"


async def test_closing_the_stream_ends_the_process(control: Daemon, container: str) -> None:
    path = f"/containers/{container}/attach?stream=1&stdin=1&stdout=1&stderr=1"
    stream = await control.stream(path)
    await control.call(lambda api: api.start(container), what="start")
    await stream.send(b"x")
    assert await stream.receive() == b"x"
    await stream.aclose()
    with anyio.fail_after(60):
        status = await control.call(lambda api: api.wait(container), what="wait")
    assert status["StatusCode"] == 0


async def test_a_stream_to_a_missing_container_says_so(control: Daemon) -> None:
    with pytest.raises(SandboxNotFoundError, match="No such container"):
        await control.stream("/containers/sandboxkit-none/attach?stream=1&stdout=1")

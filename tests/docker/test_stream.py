"""The ways to an agent: the daemon's hijacked streams, and past it into the agent's socket."""

import itertools
import os
import secrets
import socket
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import anyio
import pytest
from docker import APIClient  # type: ignore[import-untyped]  # the package ships no types
from hypothesis import given
from hypothesis import strategies as st

from sandboxkit.errors import SandboxNotFoundError
from sandboxkit.providers._agent import frames, requests
from sandboxkit.providers.docker import _direct
from sandboxkit.providers.docker._container import AGENT_SOCKET
from sandboxkit.providers.docker._daemon import Daemon
from sandboxkit.providers.docker._endpoint import Endpoint
from sandboxkit.providers.docker._provider import DockerBox
from sandboxkit.providers.docker._stream import AttachStream
from tests.components import needs_root
from tests.data_here import beside
from tests.docker.boxes import Containers
from tests.docker.conftest import PROGRAMS, docker
from tests.faults import FaultProxy

pytestmark = pytest.mark.anyio


def _arriving(pieces: list[bytes]) -> Any:  # as much of a byte stream as is read
    """A byte stream that arrives in these pieces."""
    left = [piece for piece in pieces if piece]

    async def receive(max_bytes: int = 65536) -> bytes:
        if not left:
            raise anyio.EndOfStream
        return left.pop(0)

    return SimpleNamespace(receive=receive)


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
        stream = AttachStream(_arriving(pieces[1:]), pieces[0])
        return await _read_all(stream, max_bytes), stream._stderr.decode("latin1")

    stdout, stderr = anyio.run(read)
    assert stdout == b"".join(data for kind, data in frames if kind == 1)
    assert stderr == b"".join(data for kind, data in frames if kind == 2).decode("latin1")


async def test_an_unknown_frame_breaks_the_stream() -> None:
    stream = AttachStream(_arriving([b"HTTP/1.1 500 no\r\n\r\n"]), b"")
    with pytest.raises(anyio.BrokenResourceError, match="unknown kind"):
        await stream.receive()


@pytest.fixture(params=["unix", "tcp"])
async def control(
    request: pytest.FixtureRequest, bridge: FaultProxy, anyio_backend: str
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
        image = os.environ["SANDBOXKIT_DOCKER_IMAGE"]
        body = {"Image": image, **beside(__file__, "copies_its_input.toml")}
        api.create_container_from_config(body, name)

    await control.call(create, what="create")
    yield name
    await control.call(lambda api: api.remove_container(name, force=True), what="remove")


async def test_bytes_come_back_exactly_until_the_input_ends(
    control: Daemon, container: str
) -> None:
    data = os.urandom(3_000_001)
    path = f"/containers/{container}/attach?stream=1&stdin=1&stdout=1&stderr=1"
    for closes in (False, True):
        stream = await control.stream(path)
        await control.call(lambda api: api.start(container), what="start")
        async with stream, anyio.create_task_group() as tasks:
            tasks.start_soon(stream.send, data)
            with anyio.fail_after(60):
                received = b""
                while len(received) < len(data):
                    received += await stream.receive()
                assert received == data
                if closes:
                    await stream.aclose()
                else:
                    await stream.send_eof()
                    assert await _read_all(stream) == b""
        assert stream.stderr == "ready"
        with anyio.fail_after(60):
            status = await control.call(lambda api: api.wait(container), what="wait")
        assert status["StatusCode"] == 0


async def test_a_stream_to_a_missing_container_says_so(control: Daemon) -> None:
    with pytest.raises(SandboxNotFoundError, match="No such container"):
        await control.stream("/containers/sandboxkit-none/attach?stream=1&stdout=1")


ADDRESS = "\0" + AGENT_SOCKET[1:]
GREETING = frames.encode(frames.Kind.HELLO, 0, requests.hello(None))


@needs_root("only root may enter a network namespace")
async def test_root_talks_to_the_agent_past_the_daemon(boxes: Containers) -> None:
    provider = boxes.provider()
    box = await boxes.start(provider)
    known = box.inner
    assert isinstance(known, DockerBox)
    assert await box.run("echo", "hello") == (0, "hello\n", "")
    assert known.client is not known.lifeline
    await box.run("sh", "-c", "sleep 1000 > /dev/null 2>&1 &")
    # The agent's process is found without the daemon.
    assert known._agent_pid() == int(docker("inspect", "-f", "{{.State.Pid}}", box.id)[0])
    await known.delete()
    assert provider.box(box.id)._agent_pid() is None
    with pytest.raises(SandboxNotFoundError):
        await box.run("true")


async def test_a_distant_daemon_is_not_bypassed(boxes: Containers, bridge: FaultProxy) -> None:
    provider = boxes.provider(base_url=bridge.url)
    box = await boxes.start(provider)
    for _ in range(5):
        assert await box.run("echo", "hello") == (0, "hello\n", "")
    known = box.inner
    assert isinstance(known, DockerBox)
    assert known.client is known.lifeline
    await boxes.close()


async def test_a_process_that_is_not_the_containers_is_not_entered() -> None:
    name = f"not-a-container-{secrets.token_hex(8)}"
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(f"\0{name}")
        listening.listen()
        for pid in (os.getpid(), 2**22 + 1):
            assert await _direct.connect(pid, "0" * 64, f"@{name}") is None


@pytest.mark.parametrize("user", ["root", "nobody"])
async def test_the_agent_refuses_a_program_in_its_sandbox(boxes: Containers, user: str) -> None:
    box = await boxes.start(user=user)
    assert await box.python(f"{ADDRESS=}\n{GREETING=}\n" + PROGRAMS["knock"]) == "b''"

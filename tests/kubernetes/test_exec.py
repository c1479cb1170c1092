"""The stream to a program in a container, on a real cluster, and on a server of the newer kind."""

import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import aiohttp
import anyio
import pytest
from aiohttp import web

from sandboxkit.errors import ProviderUnavailableError, SandboxNotFoundError
from sandboxkit.providers.kubernetes import _ends
from sandboxkit.providers.kubernetes._api import Api
from sandboxkit.providers.kubernetes._exec import PodExecStream
from tests.kubernetes.answers import answering
from tests.kubernetes.bare import connected, create, manifest, remove, running
from tests.kubernetes.cluster import Cluster, wait_until
from tests.kubernetes.here import new_namespace

pytestmark = pytest.mark.anyio


@pytest.fixture(scope="module")
def shared(found_cluster: Cluster) -> Iterator[str]:
    """The namespace of a pod "pod" that several tests use."""
    with new_namespace() as namespace:
        pods = f"/api/v1/namespaces/{namespace}/pods"
        found_cluster.request("POST", pods, manifest("pod"))
        wait_until(
            lambda: found_cluster.request("GET", f"{pods}/pod")["status"]["phase"] == "Running",
            "a pod that runs",
        )
        yield namespace
        found_cluster.request("DELETE", f"{pods}/pod", {"gracePeriodSeconds": 0})


@pytest.fixture
async def api(cluster: Cluster, shared: str) -> AsyncIterator[Api]:
    async with connected(cluster, shared) as (api, _):
        yield api


async def _rest(stream: PodExecStream) -> tuple[bytes, type[Exception]]:
    data = b""
    try:
        while True:
            piece = await stream.receive(300_000)
            assert 0 < len(piece) <= 300_000
            data += piece
    except (anyio.EndOfStream, anyio.BrokenResourceError, anyio.ClosedResourceError) as error:
        return data, type(error)


_ODD = ["", "a b", "&command=x", "%20", "+", "#?", "ü\n'\""]
_SAYS = "printf 'out\\377'; head -c 5000 /dev/zero | tr '\\0' x >&2; echo last >&2; exit 3"
_ARGUMENTS = "".join(f"<{word}>" for word in _ODD).encode()
_STREAMS: dict[str, tuple[list[str], bytes, type[Exception], str]] = {
    "an end": (["sh", "-c", _SAYS], b"out\xff", anyio.EndOfStream, "xxlast; "),
    "a kill": (["sh", "-c", "kill -9 $$"], b"", anyio.EndOfStream, ""),
    "odd arguments": (["printf", "<%s>", *_ODD], _ARGUMENTS, anyio.EndOfStream, ""),
    "no start": (["nosuch", "a b"], b"", anyio.BrokenResourceError, "executable file not found"),
}


@pytest.mark.parametrize("name", _STREAMS)
async def test_a_stream_ends_with_its_program(api: Api, name: str) -> None:
    argv, data, end, told = _STREAMS[name]
    stream = await api.exec("pod", "sandbox", argv)
    with anyio.fail_after(60):
        assert await _rest(stream) == (data, end)
        with pytest.raises(end):
            await stream.receive()
    await stream.aclose()
    assert told in stream.diagnostics
    if name == "an end":
        assert "exit code 3" in stream.diagnostics
        assert 1900 < len(stream.diagnostics.partition("; ")[0]) <= 2000


@pytest.mark.parametrize("forced", [False, True])
async def test_a_stream_can_be_closed_while_both_directions_wait(api: Api, forced: bool) -> None:
    ends: list[type[Exception]] = []
    await api.call("GET", await api.path("pods"), what="list pods")
    before = len(os.listdir("/proc/self/fd"))
    stream = await api.exec("pod", "sandbox", ["sleep", "infinity"])
    sent = 0

    async def send() -> None:
        nonlocal sent
        try:
            while True:  # nobody reads it: the server takes no more at some time
                await stream.send(bytes(1 << 20))
                sent += 1
        except (anyio.ClosedResourceError, anyio.BrokenResourceError) as error:
            ends.append(type(error))

    async def receive() -> None:
        ends.append((await _rest(stream))[1])

    async with anyio.create_task_group() as group:
        group.start_soon(send)
        group.start_soon(receive)
        seen = -1
        with anyio.fail_after(60):
            while seen != sent:
                seen = sent
                await anyio.sleep(0.5)
        with anyio.fail_after(10):
            await (anyio.aclose_forcefully(stream) if forced else stream.aclose())
        with anyio.fail_after(10):
            while len(ends) < 2:
                await anyio.sleep(0.01)
    assert 0 < sent < 200
    assert ends == [anyio.ClosedResourceError] * 2
    await stream.aclose()
    with pytest.raises(anyio.ClosedResourceError):
        await stream.send(b"x")
    with anyio.fail_after(10):
        while len(os.listdir("/proc/self/fd")) > before:
            await anyio.sleep(0.05)


async def test_closing_ends_the_input_of_the_program(api: Api) -> None:
    stream = await api.exec("pod", "sandbox", ["sh", "-c", "cat > /tmp/got; touch /tmp/over"])
    await stream.send(b"all of it")
    await anyio.aclose_forcefully(stream)
    argv = ["sh", "-c", "until test -e /tmp/over; do sleep 0.1; done; cat /tmp/got"]
    other = await api.exec("pod", "sandbox", argv)
    with anyio.fail_after(60):
        assert (await _rest(other))[0] == b"all of it"
    await other.aclose()


async def test_two_tasks_cannot_receive_at_once(api: Api) -> None:
    stream = await api.exec("pod", "sandbox", ["cat"])
    async with anyio.create_task_group() as group:
        group.start_soon(_rest, stream)
        await anyio.wait_all_tasks_blocked()
        with pytest.raises(anyio.BusyResourceError):
            await stream.receive()
        await stream.aclose()


async def test_a_missing_or_ended_pod_is_not_a_sandbox(cluster: Cluster, namespace: str) -> None:
    async with connected(cluster, namespace) as (api, watch):
        await create(cluster, namespace, manifest("waiting", nodeSelector={"no": "1"}))
        for name, words in (("nosuch", "nosuch"), ("waiting", "does not have a host assigned")):
            with pytest.raises(SandboxNotFoundError, match=words):
                await api.exec(name, "sandbox", ["true"], sandbox_id=name)
        watch.follow("ended")
        await create(cluster, namespace, manifest("ended", {"command": ["true"]}))
        await watch.until("ended", _ends.has_ended, seconds=60)
        try:
            stream = await api.exec("ended", "sandbox", ["true"], sandbox_id="ended")
        except SandboxNotFoundError:
            pass
        else:
            assert await _rest(stream) == (b"", anyio.BrokenResourceError)
        for name in ("waiting", "ended"):
            await remove(cluster, namespace, name)


async def test_a_frozen_server_delays_no_opening(own_cluster: Cluster, namespace: str) -> None:
    async with (
        connected(own_cluster, namespace) as (api, watch),
        running(own_cluster, namespace, watch) as pod,
    ):
        stream = await api.exec(pod, "sandbox", ["cat"])
        path = str(own_cluster.kubeconfig)
        quick, fresh = (Api(kubeconfig=path, namespace=namespace, timeout=2) for _ in range(2))
        pods = await quick.path("pods")
        await quick.call("GET", pods, what="list pods")
        with own_cluster.frozen("api"), anyio.fail_after(30):
            with pytest.raises(ProviderUnavailableError):
                await quick.exec(pod, "sandbox", ["true"])
            for each in (quick, fresh):
                with pytest.raises(ProviderUnavailableError, match="in time"):
                    await each.call("GET", pods, what="list pods")
            await stream.aclose()
            await quick.aclose()
            await fresh.aclose()


async def test_the_newer_protocol_can_end_a_programs_input(tmp_path: Path) -> None:
    got: list[bytes] = []

    async def newer(request: web.Request) -> web.StreamResponse:
        socket = web.WebSocketResponse(protocols=("v5.channel.k8s.io",))
        await socket.prepare(request)
        async for message in socket:
            got.append(message.data)
            if message.data == b"\xff\x00":
                break
        for output in (b"\x01", b"", b"\x01out", b"\x02err", b"\xff\x01", b"\x09?", b"\x01put"):
            await socket.send_bytes(output)
        await socket.send_bytes(b'\x03{"metadata":{},"status":"Success"}')
        await socket.close()
        return socket

    async with answering(newer, tmp_path) as (_, api):
        stream = await api.exec("pod", "sandbox", ["cat"])
        await stream.send(b"in" * 100_000)
        await stream.send_eof()
        with anyio.fail_after(30):
            assert await _rest(stream) == (b"output", anyio.EndOfStream)
        assert stream.diagnostics == "err"
        await stream.aclose()
    assert got.pop() == b"\xff\x00"
    assert all(each[0] == 0 and len(each) <= (128 << 10) + 1 for each in got)
    assert b"".join(each[1:] for each in got) == b"in" * 100_000


_FAILURE = b'\x03{"status":"Failure","reason":"%s"}'


@pytest.mark.parametrize(
    ("last", "end"),
    [
        (_FAILURE % b"NonZeroExitCode", anyio.EndOfStream),
        *(
            (last, anyio.BrokenResourceError)
            for last in (_FAILURE % b"InternalError", b"\x03{half", b"\x03[]", None)
        ),
    ],
)
async def test_only_the_server_ends_a_program(
    tmp_path: Path, last: bytes | None, end: type[Exception]
) -> None:
    async def says(request: web.Request) -> web.StreamResponse:
        socket = web.WebSocketResponse(protocols=("v4.channel.k8s.io",))
        await socket.prepare(request)
        await socket.send_bytes(b"\x01out")
        if last is not None:
            await socket.send_bytes(last)
        elif request.transport is not None:
            request.transport.abort()
        return socket

    async with answering(says, tmp_path) as (_, api):
        stream = await api.exec("pod", "sandbox", ["cat"])
        with anyio.fail_after(30):
            assert (await _rest(stream))[1] is end
        with pytest.raises(anyio.BrokenResourceError):
            await stream.send_eof()
        await stream.aclose()


@pytest.mark.parametrize("how", ["silent", "full", "talking"])
async def test_a_server_that_ignores_a_close_delays_no_call(tmp_path: Path, how: str) -> None:
    released = anyio.Event()

    async def deaf(request: web.Request) -> web.StreamResponse:
        socket = web.WebSocketResponse(protocols=("v4.channel.k8s.io",), autoclose=False)
        await socket.prepare(request)
        while how == "talking" and not released.is_set():
            await socket.send_bytes(b"\x01more and more")
            await anyio.sleep(0.01)
        await released.wait()
        return socket

    async with answering(deaf, tmp_path) as (answers, api):
        stream = await api.exec("pod", "sandbox", ["cat"])
        offered = answers.headers[0][aiohttp.hdrs.SEC_WEBSOCKET_PROTOCOL]
        assert offered.split(",") == ["v5.channel.k8s.io", "v4.channel.k8s.io"]
        while how == "full":
            with anyio.move_on_after(1) as waited:
                await stream.send(bytes(1 << 20))
            if waited.cancelled_caught:
                break
        with anyio.fail_after(10):
            await stream.aclose()
        released.set()


async def test_a_refused_upgrade_is_not_a_stream(tmp_path: Path) -> None:
    async def page(request: web.Request) -> web.StreamResponse:
        return web.Response(text="<html>welcome</html>")

    async with answering(page, tmp_path) as (_, api):
        with pytest.raises(ProviderUnavailableError):
            await api.exec("pod", "sandbox", ["cat"])

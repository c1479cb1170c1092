"""A daemon that is down, silent, odd or cut off for a while: typed errors in time, and no sandbox or output lost."""

import contextlib
import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

import anyio
import pytest

from sandboxkit import Operation, Session, errors
from sandboxkit.provider import StreamName
from sandboxkit.providers.docker import DockerProvider, _direct
from sandboxkit.providers.docker import _provider as docker_provider
from sandboxkit.types import Command, SandboxSpec
from tests.chaos.distant import no_way
from tests.components import needs_root
from tests.data_here import beside
from tests.docker.boxes import Containers
from tests.docker.conftest import PROGRAMS, SOCKET, containers, docker, listed, until_gone
from tests.faults import Drop, Fault, FaultProxy, Half, HttpAnswer, Request, Reset, Stall

pytestmark = pytest.mark.anyio

WITHIN = 10.0
BUSY = 18.0
"""Seconds, beside other tests, in which silence is known: sooner than on a stream that may fall silent by itself."""
_DATA: dict[str, dict[str, str]] = beside(__file__, "silence.toml")
REQUESTS = _DATA["requests"]
BODIES = {name: text.encode("latin-1") for name, text in _DATA["bodies"].items()}


async def lives(provider: DockerProvider, tag: str) -> None:
    """All that a provider asks of its daemon."""
    box = await provider.create(SandboxSpec(tags={"test": tag}))
    try:
        assert [info.id for info in await listed(provider, tag)] == [box.id]
        await box.info()
    finally:
        await box.delete()


async def meets(tag: str, where: str, fault: Fault, timeout: float = 3.0) -> errors.SandboxError:
    """The error where one of a provider's requests meets a fault."""

    def plan(request: Request) -> Fault | None:
        return fault if re.match(REQUESTS[where], request.line) else None

    with FaultProxy(f"unix://{SOCKET}", plan=plan) as proxy:
        provider = DockerProvider(base_url=proxy.url, timeout=timeout)
        with anyio.fail_after(60), pytest.raises(errors.SandboxError) as caught:
            await lives(provider, tag)
        assert proxy.faults
        proxy.plan = None
        # Whatever the daemon did not do then, it does now.
        await provider.aclose()
        await until_gone(provider, tag)
        await provider.aclose()
    return caught.value


# Each request is met by one of the two faults each time, by the other one each night.
SILENCES = [
    pytest.param(
        request,
        fault,
        id=f"{request}-{name}",
        marks=[] if (number + other) % 2 else pytest.mark.nightly,
    )
    for number, request in enumerate(list(REQUESTS)[:-1])
    for other, (name, fault) in enumerate({"unheard": Stall(), "unanswered": Drop("stall")}.items())
]


@pytest.mark.parametrize(("where", "fault"), SILENCES)
async def test_a_silent_daemon_is_unavailable_in_time(tag: str, where: str, fault: Fault) -> None:
    error = await meets(tag, where, fault, timeout=2.0)
    assert isinstance(error, errors.ProviderUnavailableError), error
    assert "in time" in str(error)


_ODD = BODIES["no message"]
# A server error is "unavailable"; each other request is answered with two more statuses, and breaks off.
ANSWERS: list[tuple[str, Fault]] = [
    *(("image", HttpAnswer(500, body)) for body in BODIES.values()),
    *((where, HttpAnswer(500, _ODD)) for where in REQUESTS if where != "delete"),
    *((at, HttpAnswer(n, _ODD)) for at in ("version", "image", "inspect") for n in (200, 404)),
    *((where, HttpAnswer(n, _ODD)) for where in ("info", "create", "list") for n in (400, 503)),
    *((where, Half(5)) for where in REQUESTS),
]


@pytest.mark.parametrize(("where", "fault"), ANSWERS, ids=str)
async def test_an_odd_or_half_answer_is_a_typed_error(tag: str, where: str, fault: Fault) -> None:
    error = await meets(tag, where, fault)
    if isinstance(fault, HttpAnswer) and fault.status == 500:
        assert isinstance(error, errors.ProviderUnavailableError), error


@pytest.mark.parametrize("url", ["unix:///nonexistent/docker.sock", "tcp://127.0.0.1:1"])
async def test_a_daemon_that_is_down_is_named_with_how_to_start_it(url: str) -> None:
    provider = DockerProvider(base_url=url)
    with pytest.raises(errors.ProviderUnavailableError) as caught:
        await provider.create(SandboxSpec())
    assert url in str(caught.value)
    assert "systemctl start docker" in str(caught.value)
    assert caught.value.retryable
    diagnosis = await provider.diagnose()
    assert not diagnosis.available
    assert "systemctl start docker" in diagnosis.remedy


@pytest.fixture
def listener(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "docker.sock"))
        listener.listen(50)
        yield listener


async def test_a_closed_socket_names_the_group(listener: socket.socket) -> None:
    path = Path(listener.getsockname())
    path.chmod(0)
    argv = [sys.executable, "-c", PROGRAMS["closed_socket"], str(path)]
    given = os.environ | {"DOCKER_CONFIG": "/nonexistent"}
    done = subprocess.run(argv, capture_output=True, text=True, env=given)
    assert "usermod -aG docker" in done.stdout, done.stderr
    assert str(path) in done.stdout


@contextlib.contextmanager
def answering(listener: socket.socket, answer: bytes) -> Iterator[str]:
    """A daemon that says only this; nothing at all if empty."""

    def serve() -> None:
        with contextlib.ExitStack() as connections, contextlib.suppress(OSError):
            while True:
                connection = connections.enter_context(listener.accept()[0])
                if answer:
                    connection.recv(65536)
                    connection.sendall(answer)
                    connection.close()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield f"unix://{listener.getsockname()}"
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()


async def test_calls_to_a_hung_daemon_end_and_can_be_cancelled(listener: socket.socket) -> None:
    with answering(listener, b"") as url:
        provider = DockerProvider(base_url=url, timeout=0.3)
        with (
            anyio.fail_after(60),
            pytest.raises(errors.ProviderUnavailableError, match="did not answer"),
        ):
            await provider.create(SandboxSpec())
        provider = DockerProvider(base_url=url, timeout=30)
        with anyio.move_on_after(0.2) as scope:
            await provider.box("sandboxkit-0123456789abcdef").info()
        assert scope.cancelled_caught


async def test_a_server_other_than_docker_is_unavailable(listener: socket.socket) -> None:
    answer = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n[]"
    with answering(listener, answer) as url, pytest.raises(errors.ProviderUnavailableError):
        await DockerProvider(base_url=url).create(SandboxSpec())


def test_another_clients_call_to_a_paused_sandbox_fails_and_then_works(tag: str) -> None:
    """The contract checks all other calls in tests/conformance."""
    with (
        Session("docker", tags={"test": tag}) as first,
        first.sandbox() as sandbox,
        Session("docker") as session,
    ):
        sandbox.start().result(60)
        assert sandbox.id is not None
        docker("pause", sandbox.id)
        again = session.from_id(sandbox.id).result(BUSY)
        with pytest.raises((errors.OutcomeUnknownError, errors.ProviderUnavailableError)):
            again.exec(["true"]).result(BUSY)
        docker("unpause", sandbox.id)
        assert again.exec(["echo", "again"]).result(30).stdout == "again\n"


@pytest.mark.alone  # twelve sandboxes write and are timed, which a busy machine delays
def test_all_callers_of_a_silent_daemon_fail_together(tag: str) -> None:
    """Agents that live, and now and then run, are not held up: it is the daemon that says nothing."""
    with (
        FaultProxy(f"unix://{SOCKET}") as proxy,
        mock.patch.object(_direct, "connect", no_way),
        Session(DockerProvider(base_url=proxy.url, timeout=8.0), tags={"test": tag}) as session,
    ):
        sandboxes = [session.sandbox() for _ in range(12)]
        chatty = ["sh", "-c", "while :; do echo here; sleep 0.2; done"]
        running = [sandbox.exec(chatty) for sandbox in sandboxes]
        for process in running:
            assert next(iter(process.stdout.lines())) == "here"
        proxy.stall()
        begun = time.monotonic()
        try:
            for process in running:
                with pytest.raises(errors.OutcomeUnknownError):
                    process.result(max(0.0, begun + WITHIN - time.monotonic()))
        finally:
            proxy.heal()
    with Session("docker") as session:
        assert session.list({"test": tag}).result(30) == []


async def test_a_silent_streams_outcome_is_unknown(
    boxes: Containers, bridge: FaultProxy, tag: str
) -> None:
    provider = boxes.provider(base_url=bridge.url, timeout=4.0)
    box = await boxes.start(provider)

    async def output(stream: StreamName, chunk: bytes) -> None:
        bridge.stall()

    command = Command(("sh", "-c", "echo running; sleep 600"))
    with anyio.fail_after(BUSY), pytest.raises(errors.OutcomeUnknownError):
        await box.inner.exec(command, output)
    with anyio.fail_after(BUSY), pytest.raises(errors.ProviderUnavailableError):
        await box.inner.delete()
    bridge.resume()
    await box.inner.delete()
    assert await listed(provider, tag) == []
    await boxes.close()


SHORT = pytest.param("short", marks=needs_root("only root may go past the daemon"))
COUNT = 3
TICKS = "i=0; until [ -e stop ]; do echo $((i += 1)); sleep 0.05; done; cat; echo over"
"""Counts until it is told to stop, and then echoes its input."""


def cut(proxy: FaultProxy, seconds: float) -> None:
    """Break every connection, and each new one, for `seconds`: how long the hiccup lasts is the test."""
    proxy.plan = lambda request: Reset()
    proxy.reset()
    time.sleep(seconds)
    proxy.heal()


@pytest.mark.parametrize("way", ["unix", "tcp", SHORT])
@pytest.mark.parametrize("seconds", [2, pytest.param(20, marks=pytest.mark.nightly)])
def test_a_cut_ends_no_sandbox_and_loses_no_output(tag: str, way: str, seconds: int) -> None:
    connect = _direct.connect if way == "short" else no_way
    with (
        mock.patch.object(_direct, "connect", connect),
        FaultProxy(f"unix://{SOCKET}", listen="tcp" if way == "tcp" else "unix") as proxy,
        Session(DockerProvider(base_url=proxy.url, timeout=10), tags={"test": tag}) as session,
    ):
        sandboxes = [session.sandbox() for _ in range(COUNT)]
        running = [sandbox.exec(["sh", "-c", TICKS], stdin=True) for sandbox in sandboxes]
        printed = [iter(process.stdout.lines()) for process in running]
        assert [next(lines) for lines in printed] == ["1"] * COUNT
        ids = set(containers(tag))
        cut(proxy, seconds)
        for sandbox, process, lines in zip(sandboxes, running, printed, strict=True):
            # However few lines a busy machine printed meanwhile.
            output = ["1", *(next(lines) for _ in range(int(seconds / 0.05 / 4)))]
            sandbox.write_file("/workspace/stop", b"").result(60)
            process.stdin.write("input\n").result(60)
            process.stdin.close()
            output += lines
            assert process.result(60).returncode == 0
            assert output[-2:] == ["input", "over"]
            assert output[:-2] == [str(n) for n in range(1, len(output) - 1)]
        assert set(containers(tag)) == ids
        session.close().result(60)
        Operation(session._provider.aclose()).result(60)


@pytest.mark.parametrize("hiccup", [False, True])
@pytest.mark.parametrize("way", ["through the daemon", SHORT])
def test_the_owners_death_ends_its_sandboxes(tag: str, way: str, hiccup: bool) -> None:
    grace = 600.0 if way == "short" else 8.0 if hiccup else 2.0
    with FaultProxy(f"unix://{SOCKET}", listen="unix") as proxy:
        command = [sys.executable, "-c", PROGRAMS["owner"], proxy.url, tag, str(grace), way]
        pipe = subprocess.PIPE
        with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as owner:
            assert owner.stdout is not None
            assert owner.stdout.readline() == "ready\n"
            if hiccup:
                cut(proxy, 1.0)
                deadline = time.monotonic() + 60
                while proxy.open < 1 and way != "short" and time.monotonic() < deadline:
                    time.sleep(0.05)  # until it is connected again
            assert len(containers(tag)) == 1
            owner.kill()
        died = time.monotonic()
        while containers(tag):
            time.sleep(0.05)
        took = time.monotonic() - died
        # The grace of a sandbox for which none is set is 30 s.
        assert took < (20.0 if way == "short" else grace + 20.0)


def test_the_documents_say_how_long_the_grace_is() -> None:
    root = Path(__file__).parents[2]
    for page, unit in (("sessions", "seconds,"), ("providers", "s;")):
        text = (root / "docs/concepts" / f"{page}.md").read_text()
        assert f"within {docker_provider._GRACE:g} {unit}" in text


async def test_a_closed_provider_keeps_no_connection_though_an_error_is_kept(
    bridge: FaultProxy,
) -> None:
    provider = DockerProvider(base_url=bridge.url)

    async def ask() -> errors.SandboxNotFoundError:
        with pytest.raises(errors.SandboxNotFoundError) as kept:
            await provider.box("sandboxkit-0123456789abcdef").info()
        return kept.value

    async def all_closed() -> None:
        with anyio.fail_after(30):
            while bridge.open:  # the proxy sees it a moment later
                await anyio.sleep(0.01)

    kept = await ask()
    assert bridge.open > 0
    async with anyio.create_task_group() as group:
        for _ in range(5):
            group.start_soon(ask)
        await provider.aclose()
    await provider.aclose()
    await all_closed()
    assert kept.__cause__ is not None
    await ask()
    await all_closed()


@pytest.mark.usefixtures("daemon")
def test_the_limit_of_open_files_is_named() -> None:
    argv = [sys.executable, "-c", PROGRAMS["few_descriptors"]]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=120)
    output = done.stdout.splitlines()
    assert output, done.stderr
    assert [line for line in output if "Docker daemon at" in line and "start it" in line] == []
    assert any("30 open files" in line and "ulimit -n" in line for line in output), output

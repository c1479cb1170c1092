"""A container that is paused, and a daemon that says nothing: never the program's fault."""

import re
import subprocess
import time
from collections.abc import Iterator
from typing import Any
from unittest import mock

import anyio
import pytest

from sandboxkit import Operation, Sandbox, Session
from sandboxkit.errors import OutcomeUnknownError, ProviderUnavailableError
from sandboxkit.provider import StreamName
from sandboxkit.providers.docker import DockerProvider, _direct
from sandboxkit.types import Command, SandboxSpec
from tests.chaos.distant import no_way
from tests.docker.conftest import SOCKET, listed, until_gone
from tests.faults import Drop, Fault, FaultProxy, Request, Stall

WITHIN = 10.0
BUSY = 18.0
"""Seconds, beside other tests, in which silence is known: sooner than on a stream that may fall silent by itself."""


@pytest.fixture
def sandbox(daemon: None, tag: str) -> Iterator[Sandbox]:
    with Session(provider="docker", tags={"test": tag}) as session:
        sandbox = session.sandbox()
        sandbox.start().result(60)
        yield sandbox


def docker(verb: str, sandbox: Sandbox) -> None:
    assert sandbox.id is not None
    subprocess.run(["docker", verb, sandbox.id], check=True, capture_output=True)


def test_calls_of_two_clients_to_a_paused_sandbox_fail_in_time_and_then_work(
    sandbox: Sandbox,
) -> None:
    """The contract checks all other calls in tests/conformance."""
    assert sandbox.id is not None
    with Session(provider="docker") as session:
        docker("pause", sandbox)
        end = time.monotonic() + BUSY
        calls: list[Operation[Any]] = [
            sandbox.read_file("/etc/passwd"),
            sandbox.write_file("/tmp/x", b"x" * 3_000_000),
            sandbox.list_dir("/"),
        ]
        again = session.from_id(sandbox.id).result(BUSY)
        other = again.exec(["true"])
        for call in calls:
            with pytest.raises(ProviderUnavailableError):
                call.result(end - time.monotonic())
        with pytest.raises((OutcomeUnknownError, ProviderUnavailableError)):
            other.result(end + 2 - time.monotonic())
        docker("unpause", sandbox)
        assert sandbox.read_file("/etc/passwd").result(30)
        assert again.exec(["echo", "again"]).result(30).stdout == "again\n"


REQUESTS = {
    "create": "POST .*/containers/create",
    "attach": "POST .*/attach",
    "start": "POST .*/start",
    "inspect": "GET .*/containers/[^/]*/json",
    "list": r"GET .*/containers/json",
    "delete": "(DELETE .*/containers/|POST .*/wait)",
    "image": "GET .*/images/",
    "info": "GET .*/info",
    "version": "GET .*/version",
}


# Each request is met by one of the two faults each time, by the other one each night.
FAULTS = [
    pytest.param(
        request,
        fault,
        id=f"{request}-{name}",
        marks=[] if (number + other) % 2 else pytest.mark.nightly,
    )
    for number, request in enumerate(REQUESTS)
    for other, (name, fault) in enumerate({"unheard": Stall(), "unanswered": Drop("stall")}.items())
]


@pytest.mark.anyio
@pytest.mark.parametrize(("silent", "fault"), FAULTS)
async def test_a_daemon_that_falls_silent_is_unavailable_in_time(
    daemon: None, tag: str, silent: str, fault: Fault
) -> None:
    def plan(request: Request) -> Fault | None:
        return fault if re.match(REQUESTS[silent], request.line) else None

    with FaultProxy(f"unix://{SOCKET}") as proxy:
        provider = DockerProvider(base_url=proxy.url, timeout=2.0)
        proxy.plan = plan

        async def one_life() -> None:
            sandbox_id = await provider.create(SandboxSpec(tags={"test": tag}))
            try:
                assert [info.id async for info in provider.list({"test": tag})] == [sandbox_id]
                await provider.get(sandbox_id)
            finally:
                await provider.delete(sandbox_id)

        # A create that fails deletes what it made: two calls, each within its time, which is a minute elsewhere.
        with (
            anyio.fail_after(30),
            pytest.raises(ProviderUnavailableError, match="in time"),
        ):
            await one_life()
        proxy.plan = None
        # Whatever the daemon did not do then, it does now.
        await provider.aclose()
        await until_gone(provider, tag)
        await provider.aclose()


@pytest.mark.alone  # twelve sandboxes write and are timed, which a busy machine delays
def test_all_callers_of_a_silent_daemon_fail_together(daemon: None, tag: str) -> None:
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
                with pytest.raises(OutcomeUnknownError):
                    process.result(max(0.0, begun + WITHIN - time.monotonic()))
        finally:
            proxy.heal()
    with Session("docker") as session:
        assert session.list({"test": tag}).result(30) == []


@pytest.mark.anyio
async def test_a_stream_that_falls_silent_leaves_the_outcome_unknown(
    daemon: None, tag: str
) -> None:
    with FaultProxy(f"unix://{SOCKET}", listen="tcp") as proxy:
        provider = DockerProvider(base_url=proxy.url, timeout=4.0)
        sandbox_id = await provider.create(SandboxSpec(tags={"test": tag}))

        async def output(stream: StreamName, chunk: bytes) -> None:
            proxy.stall()

        command = Command(("sh", "-c", "echo running; sleep 600"))
        with anyio.fail_after(BUSY), pytest.raises(OutcomeUnknownError):
            await provider.exec(sandbox_id, command, output)
        with anyio.fail_after(BUSY), pytest.raises(ProviderUnavailableError):
            await provider.delete(sandbox_id)
        proxy.resume()
        await provider.delete(sandbox_id)
        assert await listed(provider, tag) == []
        await provider.aclose()

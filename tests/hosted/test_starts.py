"""What a start costs at a distance: how often it waits for the vendor or the agent."""

import base64
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import anyio
import pytest
from anyio.abc import ByteStream

from sandboxkit import Session, _registry
from sandboxkit.cli import main
from sandboxkit.errors import (
    ProviderUnavailableError,
    SandboxError,
    SandboxNotFoundError,
    SandboxStartError,
)
from sandboxkit.provider import FirstCommand
from sandboxkit.providers._hosted import install
from sandboxkit.providers._hosted.agent import HostedInstance
from sandboxkit.providers._hosted.ambiguous import AmbiguousError
from sandboxkit.providers._hosted.baking import BakingProvider
from sandboxkit.providers.e2b import E2BProvider
from sandboxkit.types import Command, SandboxSpec
from tests.e2b.server import emulator as e2b
from tests.emulators.modal.client import modal_emulator as modal
from tests.hosted.conftest import loaded

pytestmark = pytest.mark.anyio

SECRET = "a secret of the user's"


@pytest.fixture
async def provider(
    anyio_backend: str, vendor: str, state: Path
) -> AsyncIterator[BakingProvider[HostedInstance]]:
    """A provider with a baked image."""
    provider = loaded(vendor)
    await provider.bake(None)
    yield provider
    await provider.aclose()


class Recorded(ByteStream):
    """A program's stream that counts what is sent on it, and may withhold what comes from it."""

    def __init__(self, stream: ByteStream, answers: "Answers") -> None:
        self._stream, self._answers = stream, answers
        self.sent = 0
        self.data = b""

    async def receive(self, max_bytes: int = 65536) -> bytes:
        await self._answers.come.wait()
        if self._answers.break_off:
            raise anyio.BrokenResourceError
        return await self._stream.receive(max_bytes)

    async def send(self, item: bytes) -> None:
        self.sent += len(item)
        self.data += item
        await self._stream.send(item)

    async def send_eof(self) -> None:
        await self._stream.send_eof()

    async def aclose(self) -> None:
        await self._stream.aclose()


class Answers:
    """Whether anything that programs of the sandboxes say arrives here."""

    def __init__(self) -> None:
        self.come = anyio.Event()
        self.come.set()
        self.break_off = False
        """Whether every stream breaks instead."""

    def withhold(self) -> None:
        self.come = anyio.Event()


@pytest.fixture
def answers() -> Answers:
    return Answers()


@pytest.fixture
def runs(
    provider: BakingProvider[HostedInstance], answers: Answers, monkeypatch: pytest.MonkeyPatch
) -> list[tuple[tuple[str, ...], Recorded]]:
    """The programs that the provider runs, and their streams."""
    run, found = provider._run, list[tuple[tuple[str, ...], Recorded]]()

    async def recorded(sandbox_id: str, argv: tuple[str, ...]) -> ByteStream:
        stream = Recorded(await run(sandbox_id, argv), answers)
        found.append((argv, stream))
        return stream

    monkeypatch.setattr(provider, "_run", recorded)
    return found


def sent_of(run: tuple[tuple[str, ...], Recorded]) -> bytes:
    """Everything that was sent to a program: with the request that started it, and on its stream."""
    argv, stream = run
    return b"".join(decoded(argv)) + stream.data


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


PLACES = ("in the image", "sent", "guessed wrongly")
"""Where the agent of a start comes from."""


@pytest.fixture(params=PLACES)
async def spec(
    request: pytest.FixtureRequest, provider: BakingProvider[HostedInstance]
) -> SandboxSpec:
    """A spec, of a sandbox whose agent is there, has to be sent, or is missing against expectation."""
    if request.param != "in the image":
        for baked in await provider.baked():
            await provider.unbake(baked)
        provider._assumed_agents.clear()
        if request.param == "guessed wrongly":
            provider._assumed_agents[""] = install.PRESENT
    return SandboxSpec(lifetime=600)


async def test_the_first_command_is_sent_before_anything_is_heard_of_the_agent(
    provider: BakingProvider[HostedInstance],
    runs: list[tuple[tuple[str, ...], Recorded]],
    answers: Answers,
    spec: SandboxSpec,
) -> None:
    mark = "the first command's own text"
    first = FirstCommand(Command(("sh", "-c", 'echo "$1" >>/tmp/ran; cat /tmp/ran', "sh", mark)))
    sandbox_id = ""

    async def create() -> None:
        nonlocal sandbox_id
        sandbox_id = await provider.create_for(spec, first)

    answers.withhold()
    async with anyio.create_task_group() as group:
        group.start_soon(create)
        with anyio.fail_after(60):
            while not (runs and mark.encode() in sent_of(runs[0])):
                await anyio.sleep(0.01)
        assert not sandbox_id
        assert first.sent
        answers.come.set()
    try:
        printed = Printed()
        assert (await provider.exec(sandbox_id, first.command, printed)).status == 0
        assert printed.text.decode() == f"{mark}\n"  # it ran once
        assert sum(mark.encode() in sent_of(each) for each in runs) == len(runs)
    finally:
        await provider.delete(sandbox_id)


async def test_variables_of_the_first_command_are_sent_on_the_stream(
    provider: BakingProvider[HostedInstance], runs: list[tuple[tuple[str, ...], Recorded]]
) -> None:
    first = FirstCommand(Command(("sh", "-c", 'echo "$KEY"'), env={"KEY": SECRET}))
    sandbox_id = await provider.create_for(SandboxSpec(lifetime=600), first)
    try:
        [(argv, stream)] = runs
        assert SECRET.encode() not in b"".join(decoded(argv))
        assert SECRET.encode() in stream.data
        printed = Printed()
        await provider.exec(sandbox_id, first.command, printed)
        assert printed.text.decode() == f"{SECRET}\n"
    finally:
        await provider.delete(sandbox_id)


async def test_a_start_that_breaks_after_the_command_was_sent_may_have_run_it(
    provider: BakingProvider[HostedInstance],
    runs: list[tuple[tuple[str, ...], Recorded]],
    answers: Answers,
    spec: SandboxSpec,
) -> None:
    first = FirstCommand(Command(("true",)))
    answers.break_off = True
    with pytest.raises(ProviderUnavailableError, match="broke"):
        await provider.create_for(spec, first)
    assert first.sent


async def test_an_agent_that_refuses_has_not_run_the_command_that_was_sent_along(
    provider: BakingProvider[HostedInstance], spec: SandboxSpec
) -> None:
    first = FirstCommand(Command(("true",)))
    with pytest.raises(SandboxStartError, match="/proc/no/such"):
        await provider.create_for(replace(spec, workdir="/proc/no/such"), first)
    assert not first.sent


async def test_a_refused_program_has_not_run_the_command_that_was_sent_with_it(
    provider: BakingProvider[HostedInstance], monkeypatch: pytest.MonkeyPatch
) -> None:
    unavailable = ProviderUnavailableError("cannot be reached", provider=provider.name)
    unclear = ProviderUnavailableError("no answer", provider=provider.name)
    unclear.__cause__ = AmbiguousError("no answer", provider=provider.name)
    gone = SandboxNotFoundError("it has ended since", provider=provider.name)
    for error, sent in ((unavailable, False), (unclear, True), (gone, True)):
        first = FirstCommand(Command(("true",)))

        async def refuse(
            sandbox_id: str,
            argv: tuple[str, ...],
            error: SandboxError = error,
            first: FirstCommand = first,
        ) -> ByteStream:
            assert first.sent
            raise error

        monkeypatch.setattr(provider, "_run", refuse)
        with pytest.raises(SandboxError):
            await provider.create_for(SandboxSpec(lifetime=600), first)
        assert first.sent == sent


def test_a_start_and_its_first_command_take_four_requests_on_modal(
    state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sandboxkit.providers.modal._stream._SILENT_SECONDS", 60.0)
    with modal() as emulator, Session("modal") as session:
        session.sandbox().start().result(60)  # opens the connection, and builds the image
        emulator.ask("calls")
        assert session.sandbox().exec(["true"]).result(60).returncode == 0
        assert emulator.ask("calls") == {
            "SandboxCreateV2": 1,
            "TaskExecStart": 1,
            "TaskExecStdioRead": 1,
            "TaskExecStdinWrite": 1,
        }


def test_a_sandbox_that_is_deleted_at_once_is_no_reason_to_probe_e2bs_streams_again(
    state: Path,
) -> None:
    provider = _registry.load("e2b")
    assert isinstance(provider, E2BProvider)
    with e2b():
        assert main(["bake", "-p", "e2b"]) == 0
        with Session(provider) as session:
            for _ in range(3):
                sandbox = session.sandbox()
                assert sandbox.exec(["true"]).result(60).returncode == 0
                sandbox.stop().result(60)
                assert provider._account.streams is True

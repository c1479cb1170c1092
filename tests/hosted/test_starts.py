"""What a start costs at a distance: how often it waits for the vendor or the agent."""

import base64
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import anyio
import pytest
from anyio.abc import ByteStream

from sandboxkit import Session, _registry, errors
from sandboxkit.cli import main
from sandboxkit.provider import FirstCommand
from sandboxkit.providers._hosted import install
from sandboxkit.providers._hosted.ambiguous import AmbiguousError
from sandboxkit.providers.e2b import E2BProvider
from sandboxkit.types import Command, SandboxSpec
from tests.e2b.server import emulator as e2b
from tests.hosted.conftest import SPEC, Box, Provider, loaded, made, printed

pytestmark = pytest.mark.anyio

SECRET = "a secret of the user's"
PLACES = ("in the image", "sent", "guessed wrongly")
"""Where the agent of a start comes from."""


def shell(script: str, *arguments: str, **env: str) -> Command:
    return Command(("sh", "-c", script, "sh", *arguments), env=env)


@pytest.fixture
async def provider(anyio_backend: str, vendor: str, state: Path) -> AsyncIterator[Provider]:
    """A provider with a baked image."""
    provider = loaded(vendor)
    await provider.bake(None)
    yield provider
    await provider.aclose()


@dataclass
class Run:
    """A program that a provider has run."""

    request: bytes
    """Its arguments, and what each says in base64."""
    data: bytes = b""
    """What was sent on its stream."""


@dataclass
class Runs:
    """The programs that a provider has run, and whether anything that they say arrives here."""

    arrives: anyio.Event = field(default_factory=anyio.Event)
    breaks: bool = False
    """Whether every stream breaks instead."""
    all: list[Run] = field(default_factory=list)


def _decoded(argv: tuple[str, ...]) -> Iterator[bytes]:
    for word in argv:
        yield word.encode()
        with suppress(ValueError):
            yield base64.b64decode(word, validate=True)


@pytest.fixture
def runs(anyio_backend: str, provider: Provider, monkeypatch: pytest.MonkeyPatch) -> Runs:
    """The programs that the provider runs from here on."""
    kind, found = type(provider.box("any")), Runs()
    run = kind._run
    found.arrives.set()

    async def recorded(box: Box, argv: tuple[str, ...]) -> ByteStream:
        stream, noted = await run(box, argv), Run(b"".join(_decoded(argv)))
        send, receive = stream.send, stream.receive

        async def sending(item: bytes) -> None:
            noted.data += item
            await send(item)

        async def receiving(max_bytes: int = 65536) -> bytes:
            await found.arrives.wait()
            if found.breaks:
                raise anyio.BrokenResourceError
            return await receive(max_bytes)

        monkeypatch.setattr(stream, "send", sending)
        monkeypatch.setattr(stream, "receive", receiving)
        found.all.append(noted)
        return stream

    monkeypatch.setattr(kind, "_run", recorded)
    return found


async def test_the_request_that_starts_a_baked_agent_has_all_that_the_agent_needs(
    provider: Provider, runs: Runs
) -> None:
    async with made(provider, replace(SPEC, env={"A": "1"})) as box:
        assert [each.data for each in runs.all] == [b""]
        script = 'echo "$A ${SANDBOXKIT_FIRST-no}"; grep -la SANDBOXKIT_FIRST /proc/[0-9]*/cmdline'
        mine = (await printed(box, shell(script))).splitlines()
        assert mine[0] == "1 no"
        assert len(mine) <= 3  # the command's own shell, and grep
        assert len(runs.all) == 1


@pytest.mark.parametrize("name", ["secrets", "env"])
async def test_secrets_and_what_is_too_large_for_a_command_line_are_sent_on_the_stream(
    provider: Provider, runs: Runs, name: str
) -> None:
    """Vendors log command lines."""
    value = SECRET if name == "secrets" else "x" * 70_000
    spec = SandboxSpec(lifetime=600, **{name: {"KEY": value}})  # type: ignore[arg-type]  # one of two
    async with made(provider, spec) as box:
        (run,) = runs.all
        assert len(run.data) > len(value)
        assert value.encode() not in run.request
        assert await printed(box, shell('echo "$KEY"')) == f"{value}\n"


@pytest.fixture(params=PLACES)
async def spec(request: pytest.FixtureRequest, provider: Provider) -> SandboxSpec:
    """A spec, of a sandbox whose agent is there, has to be sent, or is missing against expectation."""
    if request.param != "in the image":
        for baked in await provider.baked():
            await provider.unbake(baked)
        provider.assumed_agents.clear()
        if request.param == "guessed wrongly":
            provider.assumed_agents[""] = install.PRESENT
    return SPEC


async def test_the_first_command_is_sent_before_anything_is_heard_of_the_agent(
    provider: Provider, runs: Runs, spec: SandboxSpec
) -> None:
    mark = "the first command's own text"
    first = FirstCommand(shell('echo "$1" >>/tmp/ran; cat /tmp/ran', mark))
    runs.arrives = anyio.Event()

    def have_it() -> list[bool]:
        return [mark.encode() in each.request + each.data for each in runs.all]

    async def hear() -> None:
        with anyio.fail_after(60):
            while not any(have_it()[:1]):
                await anyio.sleep(0.01)
        assert first.sent
        runs.arrives.set()

    async with anyio.create_task_group() as group:
        group.start_soon(hear)
        async with made(provider, spec, first) as box:
            assert runs.arrives.is_set()
            assert await printed(box, first.command) == f"{mark}\n"  # it ran once
            assert all(have_it())


async def test_variables_of_the_first_command_are_sent_on_the_stream(
    provider: Provider, runs: Runs
) -> None:
    first = FirstCommand(shell('echo "$KEY"', KEY=SECRET))
    async with made(provider, SPEC, first) as box:
        (run,) = runs.all
        assert SECRET.encode() not in run.request
        assert SECRET.encode() in run.data
        assert await printed(box, first.command) == f"{SECRET}\n"


async def test_a_start_that_breaks_after_the_command_was_sent_may_have_run_it(
    provider: Provider, runs: Runs, spec: SandboxSpec
) -> None:
    first = FirstCommand(Command(("true",)))
    runs.breaks = True
    with pytest.raises(errors.ProviderUnavailableError, match="broke"):
        await provider.create(spec, first)
    assert first.sent


async def test_an_agent_that_refuses_has_not_run_the_command_that_was_sent_along(
    provider: Provider, spec: SandboxSpec
) -> None:
    first = FirstCommand(Command(("true",)))
    with pytest.raises(errors.SandboxStartError, match="/proc/no/such"):
        await provider.create(replace(spec, workdir="/proc/no/such"), first)
    assert not first.sent


async def test_a_refused_program_has_not_run_the_command_that_was_sent_with_it(
    provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def sent(error: errors.SandboxError) -> bool:
        first = FirstCommand(Command(("true",)))

        def refuse(*_: object) -> None:
            assert first.sent
            raise error

        monkeypatch.setattr(type(provider.box("any")), "_run", refuse)
        with pytest.raises(errors.SandboxError):
            await provider.create(SPEC, first)
        return first.sent

    assert not await sent(errors.ProviderUnavailableError("cannot be reached", provider="x"))
    assert await sent(errors.SandboxNotFoundError("it has ended since", provider="x"))
    unclear = errors.ProviderUnavailableError("no answer", provider="x")
    unclear.__cause__ = AmbiguousError("no answer", provider="x")
    assert await sent(unclear)


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
                assert provider.account.streams is True

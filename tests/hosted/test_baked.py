"""Images with the agent in them: starts find them, do without them, and `bake` renews and removes them."""

import json
import logging
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import anyio
import pytest

from sandboxkit.cli import main
from sandboxkit.errors import ImageNotFoundError
from sandboxkit.providers._hosted import install
from sandboxkit.types import Command
from tests.hosted.conftest import SPEC, Box, Provider, loaded, made, printed

pytestmark = pytest.mark.anyio


@pytest.fixture
async def provider(anyio_backend: str, vendor: str, state: Path) -> AsyncIterator[Provider]:
    provider = loaded(vendor)
    yield provider
    for baked in await provider.baked():
        await provider.unbake(baked)
    await provider.aclose()


async def start(provider: Provider, image: str | None = None) -> None:
    async with made(provider, replace(SPEC, image=image)) as box:
        await printed(box, Command(("true",)))


async def test_a_start_uses_the_baked_agent(provider: Provider, vendor: str) -> None:
    baked = await provider.bake(None, renew=False)
    later = loaded(vendor)
    try:
        await start(later)
        # Had it been missing there, the start would have learned what to send.
        assert later.assumed_agents == {baked.reference: install.PRESENT}
    finally:
        await later.aclose()


async def test_baking_twice_builds_once(provider: Provider) -> None:
    first = await provider.bake(None, renew=False)
    assert await provider.bake(None, renew=False) == first
    assert await provider.baked() == [first]


async def test_a_start_works_after_the_baked_image_was_removed(provider: Provider) -> None:
    baked = await provider.bake(None, renew=False)
    await provider.remove_snapshot(baked.reference)
    await start(provider)
    assert await provider.baked() == []


async def test_removing_a_baked_image_removes_it_at_the_vendor(provider: Provider) -> None:
    baked = await provider.bake(None, renew=False)
    await start(provider, baked.reference)
    await provider.unbake(baked)
    assert await provider.baked() == []
    with pytest.raises(ImageNotFoundError):
        await start(provider, baked.reference)


async def test_an_image_of_another_version_is_replaced(
    provider: Provider, state: Path, caplog: pytest.LogCaptureFixture
) -> None:
    await provider.bake(None, renew=False)
    (path,) = state.glob("*.json")
    path.write_text(json.dumps({**json.loads(path.read_text()), "version": "another"}))
    with caplog.at_level(logging.WARNING, "sandboxkit"):
        for _ in range(2):
            await start(provider)
    assert caplog.text.count("`sandboxkit bake") == 1
    assert [each.current for each in await provider.baked()] == [False]
    await provider.bake(None, renew=False)
    assert [each.current for each in await provider.baked()] == [True]
    await start(provider)


async def test_a_cancelled_baking_leaves_nothing(provider: Provider) -> None:
    # The emulator's end says what is left.
    for seconds in (0.05, 0.2, 0.4):
        with anyio.move_on_after(seconds):
            await provider.bake(None, renew=False)


async def test_a_baking_that_is_cancelled_while_its_sandbox_is_deleted_leaves_nothing(
    provider: Provider, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = type(provider.box("any"))
    delete = kind.delete
    with anyio.CancelScope() as scope:

        async def cancelled(box: Box) -> None:
            scope.cancel()
            await delete(box)

        monkeypatch.setattr(kind, "delete", cancelled)
        await provider.bake(None)
    assert scope.cancel_called
    assert [each.current for each in await provider.baked()] == [True]
    # The emulator's end says whether the sandbox is left.


def test_the_command_line_bakes_lists_and_removes(
    vendor: str, state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bake", "-p", vendor]) == 0
    made = capsys.readouterr().out
    for option, output in (("--list", made), ("--rm", made), ("--list", "")):
        assert main(["bake", "-p", vendor, option]) == 0
        assert capsys.readouterr().out == output


def test_a_local_provider_refuses_to_bake(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bake", "-p", "local"]) == 2
    assert "has nothing to bake" in capsys.readouterr().err

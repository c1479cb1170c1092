"""Errors of the methods of providers and boxes say which provider and which sandbox they concern."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping

import pytest

from sandboxkit.errors import CapacityError, ConfigurationError, SandboxError
from sandboxkit.provider import Output
from sandboxkit.testing.fake import FakeBox, FakeProvider
from sandboxkit.types import Command, Exit, SandboxInfo, SandboxSpec

pytestmark = pytest.mark.anyio


class FailingProvider(FakeProvider):
    """A provider whose errors have a message alone."""

    name = "failing"

    def check(self, spec: SandboxSpec) -> None:
        raise ConfigurationError("check") from ValueError("why")

    async def list(self, tags: Mapping[str, str]) -> AsyncIterator[SandboxInfo]:
        yield await self.box("one").info()
        raise SandboxError("list")


class FailingBox(FakeBox):
    """A box whose errors have a message alone, except for one with fields of its own."""

    async def exec(self, command: Command, output: Output) -> Exit:
        raise SandboxError("exec")

    async def delete(self) -> None:
        raise CapacityError("delete", provider="another", sandbox_id="other")

    async def info(self) -> SandboxInfo:
        raise SandboxError("info")


async def ignored(*_: object) -> None: ...


async def listed() -> None:
    _ = [each async for each in FailingProvider(FailingBox).list({})]


async def checked() -> None:
    FailingProvider(FailingBox).check(SandboxSpec())


@pytest.mark.parametrize(
    ("call", "message", "of"),
    [
        (
            lambda: FailingProvider(FailingBox).box("box").exec(Command(("true",)), ignored),
            "exec",
            "box",
        ),
        (listed, "info", "one"),
        (checked, "check", None),
    ],
    ids=["coroutine", "listing", "check"],
)
async def test_an_error_gets_its_provider_and_its_sandbox_and_keeps_its_cause(
    call: Callable[[], Awaitable[object]], message: str, of: str | None
) -> None:
    with pytest.raises(SandboxError, match=message) as caught:
        await call()
    assert (caught.value.provider, caught.value.sandbox_id) == ("failing", of)
    assert isinstance(caught.value.__cause__, ValueError) == (message == "check")


async def test_what_an_error_says_itself_stays() -> None:
    with pytest.raises(CapacityError) as caught:
        await FailingProvider(FailingBox).box("box").delete()
    assert (caught.value.provider, caught.value.sandbox_id) == ("another", "other")

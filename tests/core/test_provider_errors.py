"""Errors of a provider's methods say which provider and which sandbox they concern."""

from collections.abc import AsyncIterator, Mapping

import pytest

from sandboxkit.errors import CapacityError, ConfigurationError, SandboxError
from sandboxkit.provider import Output
from sandboxkit.testing.fake import FakeProvider
from sandboxkit.types import Command, Exit, SandboxInfo, SandboxSpec

pytestmark = pytest.mark.anyio


class FailingProvider(FakeProvider):
    """A provider whose errors have a message alone, except for one with fields of its own."""

    name = "failing"

    def check(self, spec: SandboxSpec) -> None:
        raise ConfigurationError("check") from ValueError("why")

    async def exec(self, sandbox_id: str, command: Command, output: Output) -> Exit:
        raise SandboxError("exec")

    async def delete(self, sandbox_id: str) -> None:
        raise CapacityError("delete", provider="another", sandbox_id="other")

    async def list(self, tags: Mapping[str, str]) -> AsyncIterator[SandboxInfo]:
        yield await self.get("one")
        raise SandboxError("list")

    async def get(self, sandbox_id: str) -> SandboxInfo:
        raise SandboxError("get")


async def ignored(*_: object) -> None: ...


async def test_errors_of_coroutines_have_the_provider_and_the_sandbox() -> None:
    with pytest.raises(SandboxError, match="exec") as caught:
        await FailingProvider().exec("box", Command(("true",)), ignored)
    assert (caught.value.provider, caught.value.sandbox_id) == ("failing", "box")


async def test_errors_of_listings_have_the_provider() -> None:
    with pytest.raises(SandboxError, match="get") as caught:
        _ = [each async for each in FailingProvider().list({})]
    assert (caught.value.provider, caught.value.sandbox_id) == ("failing", "one")


def test_errors_of_checks_have_the_provider_and_their_cause() -> None:
    with pytest.raises(ConfigurationError, match="check") as caught:
        FailingProvider().check(SandboxSpec())
    assert caught.value.provider == "failing"
    assert isinstance(caught.value.__cause__, ValueError)


async def test_what_an_error_says_itself_stays() -> None:
    with pytest.raises(CapacityError) as caught:
        await FailingProvider().delete("box")
    assert (caught.value.provider, caught.value.sandbox_id) == ("another", "other")

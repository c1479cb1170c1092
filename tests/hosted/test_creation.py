"""What an unclear creation or a failed removal has left is found and removed: then, or at the end."""

from unittest import mock

import anyio
import pytest

from sandboxkit.errors import OutcomeUnknownError, ProviderUnavailableError
from sandboxkit.providers._hosted import ambiguous, creation
from sandboxkit.providers._hosted.creation import Creations
from sandboxkit.testing.fake import FakeBox, FakeProvider

pytestmark = pytest.mark.anyio


class Made(FakeBox):
    """A sandbox of a vendor."""

    def __init__(self, vendor: "Vendor", sandbox_id: str) -> None:
        super().__init__(FakeProvider(), sandbox_id)
        self.vendor = vendor

    async def delete(self) -> None:
        self.vendor.answer()
        self.vendor.alive.remove(self)


class Vendor:
    """It makes what it is asked for; its answers get lost while it is `broken`."""

    def __init__(self) -> None:
        self.alive: list[Made] = []
        self.broken = True
        self.made = 0
        self.creations = Creations(provider="vendor")

    def answer(self) -> None:
        if self.broken:
            raise ambiguous.AmbiguousError("the connection broke", provider="vendor")

    async def make(self) -> Made:
        self.made += 1
        self.alive.append(Made(self, f"box{self.made}"))
        self.answer()
        return self.alive[-1]

    async def find(self) -> list[Made]:
        self.answer()
        return list(self.alive)

    async def create(self) -> Made:
        return await self.creations.once(self.make, self.find, left=f"a sandbox {self.made}")


@pytest.fixture
def vendor(monkeypatch: pytest.MonkeyPatch) -> Vendor:
    monkeypatch.setattr(creation, "_LATE_SECONDS", 0.2)
    monkeypatch.setattr(creation, "_SETTLE_SECONDS", 1.0)
    return Vendor()


@pytest.mark.parametrize("then", ["close", "create"])
async def test_an_unfindable_creation_is_removed_on_close_and_by_the_next_one(
    vendor: Vendor, then: str
) -> None:
    with pytest.raises(ProviderUnavailableError, match="a sandbox 0 may exist") as caught:
        await vendor.create()
    assert type(caught.value) is ProviderUnavailableError
    vendor.broken = False
    assert [box.id for box in vendor.alive] == ["box1"]
    if then == "close":
        await vendor.creations.settle()
        assert vendor.alive == []
    else:
        assert [await vendor.create()] == vendor.alive


async def test_close_names_what_may_be_left_and_can_be_repeated(vendor: Vendor) -> None:
    with pytest.raises(ProviderUnavailableError):
        await vendor.create()
    with pytest.raises(ProviderUnavailableError, match=r"a sandbox 0.*the connection broke"):
        await vendor.creations.settle()
    vendor.broken = False
    await vendor.creations.settle()
    assert vendor.alive == []


async def test_a_sandbox_that_could_not_be_prepared_is_removed_later(vendor: Vendor) -> None:
    vendor.broken = False
    box = await vendor.create()
    vendor.broken = True
    with pytest.raises(ProviderUnavailableError) as caught:
        async with vendor.creations.preparing(box):
            raise OutcomeUnknownError("it broke", provider="vendor")
    assert "box1 could not be removed yet" in caught.value.__notes__[0]
    vendor.broken = False
    await vendor.creations.settle()
    assert vendor.alive == []


async def test_a_sandbox_that_appears_late_is_awaited(vendor: Vendor) -> None:
    async def lost() -> Made:
        raise ambiguous.AmbiguousError("no answer", provider="vendor")

    vendor.broken = False
    with pytest.raises(ProviderUnavailableError):
        await vendor.creations.once(lost, vendor.find, left="a late one")
    async with anyio.create_task_group() as group:
        group.start_soon(vendor.creations.settle)
        await anyio.sleep(0.05)
        vendor.alive.append(Made(vendor, "late"))
    assert vendor.alive == []


async def test_a_repeatable_call_is_made_twice_but_not_after_silence() -> None:
    for kind, times in ((ambiguous.AmbiguousError, 2), (ambiguous.SilenceError, 1)):
        call = mock.AsyncMock(side_effect=kind("broke"))
        with pytest.raises(kind):
            await ambiguous.repeatable(call)
        assert call.await_count == times


def test_an_error_that_is_its_own_cause_is_judged_once() -> None:
    for kind in (ProviderUnavailableError, ambiguous.AmbiguousError):
        error = kind("broke", provider="vendor")
        error.__cause__ = error
        assert ambiguous.is_ambiguous(error) == (kind is ambiguous.AmbiguousError)

"""The buffer: how much is made ahead, how old it may be, and what is dropped and made again."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

import pytest

from sandboxkit import ProviderUnavailableError
from sandboxkit.integrations.grpo.buffer import Batch, Buffer
from sandboxkit.integrations.grpo.config import read
from sandboxkit.integrations.grpo.data import Row
from sandboxkit.integrations.grpo.errors import GraderError
from sandboxkit.integrations.grpo.outage import Outage
from sandboxkit.integrations.grpo.rollout import Group, Rollout
from sandboxkit.integrations.rewards import Outcome, Verdict

pytestmark = pytest.mark.anyio
MIXED = (1.0, 0.0)
Rewards = Callable[[int], Sequence[float | None]]
Make = Callable[[int], Awaitable[Group]]
Works = Callable[[float], Awaitable[None]]


async def works(_: float) -> None:
    """Says the backend."""


def buffer_of(make: Make, *settings: str, works: Works = works) -> Buffer:
    needed = ["model.name=m", "data.train=t", "rollout.prompts_per_step=4", "rollout.group_size=2"]
    config = read(None, [*needed, *settings])
    return Buffer(make, config, Outage(works, config.grading))


def verdict(reward: float | None) -> Verdict:
    if reward is None:
        return Verdict(Outcome.INFRA_ERROR, 0.0, "infra", "the daemon is away")
    return Verdict(Outcome.PASSED if reward == 1 else Outcome.FAILED, reward)


class Source:
    """Makes groups of given rewards with the current version, and can be held up."""

    def __init__(self, rewards: Rewards = lambda _: MIXED) -> None:
        self.rewards, self.version = rewards, 0
        self.started: list[int] = []
        self.held: dict[int, asyncio.Event] = {}

    async def make(self, number: int) -> Group:
        self.started.append(number)
        version = self.version
        if number in self.held:
            await self.held[number].wait()
        row, members = Row(0, (1,), "", "", {}), []
        for reward in self.rewards(number):
            given = (row, [2], [True], [-1.0], version, verdict(reward))
            members.append(Rollout(*given, used_sandbox=reward != 0))
        return Group(number, tuple(members))


def numbers(batch: Batch) -> list[int]:
    return [group.number for group in batch.groups]


async def test_without_lag_a_step_starts_its_own_groups_and_no_others() -> None:
    source = Source()
    buffer = buffer_of(source.make)
    assert numbers(await buffer.take(0, 9)) == [0, 1, 2, 3]
    await asyncio.sleep(0)
    assert source.started == [0, 1, 2, 3]
    source.version = 1
    assert numbers(await buffer.take(1, 9)) == [4, 5, 6, 7]
    assert buffer.position == 8


async def test_with_lag_the_next_steps_groups_are_made_meanwhile_but_not_past_the_last() -> None:
    source = Source()
    buffer = buffer_of(source.make, "buffer.lag=1")
    assert numbers(await buffer.take(0, 2)) == [0, 1, 2, 3]
    assert len(source.started) == 8
    for version in (1, 2):
        source.version = version
        batch = await buffer.take(version, 2)
        assert all(version - (group.version or 0) <= 1 for group in batch.groups)
    await asyncio.sleep(0)
    assert len(source.started) == 12
    await buffer.aclose()


async def test_a_group_that_took_too_long_is_dropped_as_stale_and_holds_up_no_other() -> None:
    source = Source()
    source.held[0] = asyncio.Event()
    buffer = buffer_of(source.make, "buffer.lag=1")
    assert numbers(await buffer.take(0, 9)) == [1, 2, 3, 4]
    source.version = 1
    assert 0 not in numbers(await buffer.take(1, 9))
    source.version = 2
    source.held[0].set()
    await asyncio.sleep(0)
    stale = 0
    for version in (2, 3):
        source.version = version
        batch = await buffer.take(version, 9)
        stale += batch.stale
        assert all(version - (group.version or 0) <= 1 for group in batch.groups)
    assert stale == 1
    await buffer.aclose()


@pytest.mark.parametrize(
    ("rewards", "setting", "kept", "equal", "made"),
    [
        (lambda n: MIXED if n % 2 else (1.0, 1.0), "buffer.max_refill=2", [1, 3, 5, 7], 4, 8),
        (lambda _: (1.0, 1.0), "buffer.max_refill=1", [], 8, 8),
        (lambda _: (1.0, 1.0), "buffer.drop_equal=false", [0, 1, 2, 3], 0, 4),
    ],
    ids=["replaced", "nothing has a signal any more", "not to be dropped"],
)
async def test_groups_of_equal_rewards_are_replaced_within_the_refills(
    rewards: Rewards, setting: str, kept: list[int], equal: int, made: int
) -> None:
    source = Source(rewards)
    batch = await buffer_of(source.make, setting).take(0, 9)
    assert (numbers(batch), batch.equal) == (kept, equal)
    assert len(batch.finished) == len(source.started) == made


def raising(*numbers: int) -> Make:
    """Make groups of which the first rollout lost its grader, in the groups of these numbers."""

    async def make(number: int) -> Group:
        rewards = (None, 1.0) if number in numbers else MIXED
        group = await Source(lambda _: rewards).make(number)
        group.rollouts[0].grader_raised = number in numbers
        return group

    return make


@pytest.mark.parametrize(
    ("make", "limit", "failed"),
    [
        (Source(lambda n: (1.0, 0.0, None) if n == 2 else (1.0, 0.0, 0.0)).make, 0.25, 1),
        (raising(0), 0.1, 1),
        (Source(lambda _: (0.0, 0.0)).make, 0, 0),
    ],
    ids=["few failures", "a grader that raises", "nothing needed a sandbox"],
)
async def test_what_is_no_outage_is_only_counted(make: Make, limit: float, failed: int) -> None:
    settings = (f"grading.max_infra_failed_rate={limit}", "buffer.drop_equal=false")
    batch = await buffer_of(make, *settings).take(0, 9)
    assert (len(batch.groups), batch.failed, batch.remade) == (4, failed, 0)


async def test_too_many_failures_stop_the_run_and_the_cause_is_blamed() -> None:
    half = Source(lambda _: (1.0, None, 0.0, 0.0)).make
    few = Source(lambda number: (None,) if number == 2 else (0.0,)).make
    at_once, all_of_them = "grading.patience=0", "grading.max_infra_failed_rate=1"
    with pytest.raises(ProviderUnavailableError, match=r"4 of 8 .*=0.5.*daemon is away"):
        await buffer_of(half, at_once).take(0, 9)
    with pytest.raises(ProviderUnavailableError, match=r"1 of 1 .*=1;"):
        await buffer_of(few, at_once, all_of_them).take(0, 9)
    said = r"HostCompare raised for 3 of 7 rollouts .*grading.max_raised_rate=0.3; the first: "
    with pytest.raises(GraderError, match=said):
        await asyncio.wait_for(buffer_of(raising(0, 1, 2)).take(0, 9), 5)


async def test_what_an_outage_took_part_of_is_made_again_under_its_number() -> None:
    away, asked = True, 0
    source = Source(lambda number: (1.0, None if away and number != 2 else 0.0, 0.0))

    async def works(_: float) -> None:
        nonlocal away, asked
        asked += 1
        if asked < 2:
            raise ProviderUnavailableError("no daemon")
        away = False

    share = "grading.max_infra_failed_rate=0.4"
    batch = await buffer_of(source.make, share, works=works).take(0, 9)
    assert source.started == [0, 1, 2, 3, 0, 1, 3]
    assert numbers(batch) == [0, 1, 2, 3]
    assert sorted(group.number for group in batch.finished) == [0, 1, 2, 3]
    assert (batch.remade, batch.failed, asked) == (3, 0, 2)


async def away(_: float) -> None:
    raise ProviderUnavailableError("no daemon")


@pytest.mark.parametrize(
    ("works", "note"),
    [(away, "patience=1.5 s it did not end: no daemon"), (works, "one fails again and again")],
)
async def test_an_outage_that_does_not_end_is_told_with_its_cause(works: Works, note: str) -> None:
    buffer = buffer_of(Source(lambda _: (1.0, None)).make, "grading.patience=1.5", works=works)
    with pytest.raises(ProviderUnavailableError, match=r"4 of 8 .*daemon is away") as error:
        await buffer.take(0, 9)
    assert "".join(error.value.__notes__).endswith(note)


async def test_closing_gives_up_what_is_being_made() -> None:
    before, source = asyncio.all_tasks(), Source()
    source.held = {number: asyncio.Event() for number in range(4)}
    buffer = buffer_of(source.make)
    taking = asyncio.ensure_future(buffer.take(0, 9))
    while len(source.started) < 4:
        await asyncio.sleep(0)
    taking.cancel()
    await buffer.aclose()
    assert asyncio.all_tasks() - before <= {taking}

"""What a pool decides, from the state alone: nothing starts, and no clock runs."""

import asyncio
from collections.abc import Iterator

import pytest

from sandboxkit._lifecycle import Lifecycle, SessionContext
from sandboxkit._room._pool import Bucket, Do, PoolRequest, PoolState, PoolStep, Preparation
from sandboxkit._room._throttle import AdmissionThrottle
from sandboxkit.errors import ProviderUnavailableError
from sandboxkit.testing import FakeProvider
from sandboxkit.types import SandboxSpec

NOW = 1000.0
OWN = SandboxSpec()


def life(bucket: Bucket) -> Lifecycle:
    provider = FakeProvider()
    made = Lifecycle(provider, bucket.spec, SessionContext(), provider.box("fake-1"))
    made.made = made.renewed = NOW
    return made


def bucket_of(state: PoolState, name: str, asked: float, before: float) -> Bucket:
    """A spec of its own, whose last two starts were at these times."""
    bucket = state.of(SandboxSpec(env={"A": name}), counted=True)
    bucket.record_use(before)
    bucket.record_use(asked)
    return bucket


def done(state: PoolState, steps: Iterator[PoolStep]) -> list[tuple[Do, Bucket]]:
    """Do the steps, with no room under the caps, and return them."""
    found = []
    for do, bucket, one, _ in steps:
        found.append((do, bucket))
        match do:
            case Do.SERVE if bucket.ready:
                bucket.ready.popitem()
                bucket.requests.popleft()
            case Do.SERVE | Do.CREATE:
                state.room = False
            case Do.EVICT if one is not None:
                bucket.ready.pop(one, None)
                bucket.coming.pop(one, None)
                state.leaving += 1
    return found


def balanced(state: PoolState) -> list[tuple[Do, Bucket]]:
    return done(state, state.balance(NOW, fill=True))


@pytest.fixture
def state() -> PoolState:
    return PoolState(OWN, (0, 4), at_once=2, throttle=AdmissionThrottle())


def request(*buckets: Bucket) -> None:
    async def ask() -> None:
        for bucket in buckets:
            bucket.requests.append(PoolRequest(life(bucket)))

    asyncio.run(ask())


def test_room_goes_to_the_request_that_came_first(state: PoolState) -> None:
    one, two = bucket_of(state, "1", 5, 1), bucket_of(state, "2", 9, 8)
    request(two, one, two)
    served = []
    for do, bucket, _, _ in state.balance(NOW, fill=True):
        served.append((do, bucket))
        bucket.requests.popleft()
    assert served == [(Do.SERVE, two), (Do.SERVE, one), (Do.SERVE, two)]


def test_a_request_whose_sandbox_is_coming_takes_no_room(state: PoolState) -> None:
    bucket = bucket_of(state, "1", 5, 1)
    bucket.coming[life(bucket)] = Preparation.RESET
    request(bucket)
    assert balanced(state) == []
    request(bucket)
    assert balanced(state) == [(Do.SERVE, bucket)]


def test_the_least_recently_used_sandboxes_make_room(state: PoolState) -> None:
    old, new = bucket_of(state, "old", 5, 1), bucket_of(state, "new", 9, 8)
    asks = bucket_of(state, "asks", 10, 10)
    for bucket in (old, new):
        bucket.ready[life(bucket)] = None
        bucket.coming[life(bucket)] = Preparation.MADE
    request(asks, asks, asks)
    state.leaving = 0
    evicted = [(Do.EVICT, old), (Do.EVICT, old), (Do.EVICT, new)]
    assert balanced(state) == [(Do.SERVE, asks), *evicted]
    assert balanced(state) == []


def test_at_the_caps_two_specs_do_not_evict_each_other(state: PoolState) -> None:
    older, newer = bucket_of(state, "older", 8, 7), bucket_of(state, "newer", 10, 9)
    for bucket in (older, newer):
        bucket.target = 2
    newer.ready[life(newer)] = None
    state.room = False
    assert balanced(state) == []
    older.ready[life(older)] = None
    assert balanced(state) == [(Do.EVICT, older)]


def test_the_pool_fills_within_ten_seconds_however_often_creations_failed(state: PoolState) -> None:
    bucket = bucket_of(state, "1", NOW, NOW)
    bucket.target = 3
    for _ in range(20):
        bucket.made(ProviderUnavailableError("no daemon"), NOW)
    assert balanced(state) == []
    steps = state.balance(NOW + 9, fill=True)
    assert next(steps)[:2] == (Do.CREATE, bucket)
    bucket.coming[life(bucket)] = Preparation.MADE
    assert next(steps, None) is None, "one at a time until one has succeeded"


def test_another_session_gets_the_room_of_a_sandbox_that_is_due(state: PoolState) -> None:
    bucket = state.of(SandboxSpec(lifetime=1.0), counted=True)
    bucket.record_use(NOW)
    kept = life(bucket)
    kept.renewed, kept.made = NOW - 0.9, NOW - 1.0
    bucket.ready[kept] = None
    assert done(state, state.aged(NOW, wanted=True)) == [(Do.EVICT, bucket)]


def test_idle_specs_are_evicted_and_then_forgotten(state: PoolState) -> None:
    bucket = bucket_of(state, "1", 5, 1)
    bucket.target = 2
    bucket.ready[life(bucket)] = None
    assert done(state, state.aged(NOW, wanted=False)) == [(Do.EVICT, bucket)]
    assert done(state, state.aged(NOW, wanted=False)) == []
    assert bucket not in state.all()
    assert state.own in state.all()

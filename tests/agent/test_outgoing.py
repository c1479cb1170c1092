"""The order in which frames are written to an agent."""

import anyio
import pytest

from sandboxkit.providers._agent import outgoing
from sandboxkit.providers._agent.outgoing import SendQueue

pytestmark = pytest.mark.anyio

FRAME = bytes(64 << 10)


def taken(queue: SendQueue) -> list[bytes]:
    found = []
    while queue:
        found.append(b"".join(queue.take()))
    return found


async def test_short_frames_are_taken_before_all_data() -> None:
    queue = SendQueue()
    queue.put_data(FRAME, 1)
    queue.put(b"one", 2)
    queue.put(b"two", 1)
    assert taken(queue) == [b"onetwo", FRAME]


async def test_requests_take_turns_and_each_keeps_its_order() -> None:
    queue = SendQueue()
    for stream in (1, 2):
        for number in range(6):
            queue.put_data(bytes([stream, number]) + FRAME, stream)
    turns = taken(queue)
    assert [turn[0] for turn in turns] == [1, 2, 1, 2, 1, 2]
    firsts = b"".join(turn for turn in turns if turn[0] == 1)
    assert [firsts[at + 1] for at in range(0, len(firsts), len(FRAME) + 2)] == list(range(6))


async def test_a_long_request_keeps_its_place_before_its_data() -> None:
    queue = SendQueue()
    request = b"request" + FRAME
    queue.put_data(FRAME, 2)
    queue.put(request, 1)
    queue.put_data(b"its data", 1)
    assert taken(queue) == [FRAME, request + b"its data"]


async def test_no_frame_overtakes_the_long_one_that_begins_its_request() -> None:
    queue = SendQueue()
    request = b"request" + FRAME
    queue.put_data(FRAME, 2)
    queue.put(request, 1)
    queue.put(b"kill", 1)
    queue.put(b"other", 2)
    assert taken(queue) == [b"other", FRAME, request + b"kill"]


async def test_a_request_waits_for_room_only_for_its_own_data() -> None:
    queue = SendQueue()
    for _ in range(3):
        queue.put_data(FRAME, 1)
    await queue.room(2)
    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            group.start_soon(queue.room, 1)
            await anyio.lowlevel.checkpoint()
            queue.take()


async def test_a_closed_queue_wakes_all_that_wait() -> None:
    queue = SendQueue()
    for _ in range(3):
        queue.put_data(FRAME, 1)
    with anyio.fail_after(60):
        async with anyio.create_task_group() as group:
            group.start_soon(queue.room, 1)
            await anyio.lowlevel.checkpoint()
            queue.close()
        await queue.room(1)


async def test_long_data_waits_for_a_command_that_starts_and_nothing_else_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(outgoing, "monotonic", lambda: 100.0)
    queue = SendQueue()
    queue.put_data(FRAME, 1)
    queue.starts(2)
    assert 0 < queue.hold() < 0.011
    queue.put_data(b"short", 3)
    queue.put(b"request" + FRAME, 4)
    queue.put(b"kill", 1)
    allowed = []
    while taken := queue.take():
        allowed.append(b"".join(taken))
    assert allowed == [b"kill", b"short", b"request" + FRAME]
    assert queue.started(2), "the writer must be woken"
    assert queue.hold() == 0
    assert not queue.started(2)


async def test_a_command_does_not_hold_back_its_own_data() -> None:
    queue = SendQueue()
    queue.starts(1)
    queue.put_data(FRAME, 1)
    assert queue.hold() == 0


async def test_commands_without_end_hold_data_back_for_half_of_the_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 100.0
    monkeypatch.setattr(outgoing, "monotonic", lambda: now)
    queue = SendQueue()
    held = longest = row = 0
    for command in range(1000):  # one starts each millisecond, and none is said to have started
        queue.starts(command)
        row = row + 1 if queue.hold() else 0
        held += row > 0
        longest = max(longest, row)
        now += 0.001
    assert 400 <= held <= 500
    assert longest <= 11
    now += 0.01
    assert queue.hold() == 0, "commands that started long ago do not count"

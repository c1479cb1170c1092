"""Whether a provider remembers sandboxes that are over, and many ways for a sandbox to be over."""

import asyncio
import os
import re
import types
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Set
from contextlib import suppress
from typing import Any

import pytest

from sandboxkit import Operation, Sandbox, Session
from sandboxkit.errors import (
    ProviderUnavailableError,
    SandboxError,
    SandboxNotFoundError,
    SandboxTerminatedError,
)
from sandboxkit.provider import Provider, StreamName
from sandboxkit.types import Command

_AT_ONCE = 6
_SECONDS = 120.0
_FILL = "held = []\nwhile True: held.append(bytearray(1 << 24))"
_KILL_ALL = f"""
own=$(readlink /proc/self/ns/pid)
# FakeProvider has no namespace of its own: there this would end every process of this machine.
if [ -n "$own" ] && [ "$own" != "{os.readlink("/proc/self/ns/pid")}" ]; then kill -9 -1; fi
kill -9 $$
"""
_GONE = (SandboxNotFoundError, SandboxTerminatedError)


def traces(provider: Provider, ids: Collection[str]) -> list[str]:
    """Paths from a provider to texts that name one of these sandboxes.

    Followed are the attributes of sandboxkit's own objects, containers, and what functions and tasks
    hold; what a vendor's package keeps is its own business.
    """
    named = re.compile("|".join(map(re.escape, ids)))
    found: list[str] = []
    seen: dict[int, object] = {}  # the objects too, so that no other one gets an address again
    left: deque[tuple[str, object]] = deque([("provider", provider)])
    while left:
        path, item = left.popleft()
        if isinstance(item, str | bytes):
            if named.search(item if isinstance(item, str) else item.decode("latin-1")):
                found.append(f"{path} = {item!r:.120}")
        elif id(item) not in seen:
            seen[id(item)] = item
            left.extend((f"{path}{step}", part) for step, part in _parts(item))
    return found


def _parts(item: Any) -> Iterator[tuple[str, object]]:  # Any: every kind of object
    if isinstance(item, Mapping):
        for key, value in list(item.items()):
            yield f"[key {key!r:.40}]", key
            yield f"[{key!r:.40}]", value
    elif isinstance(item, list | tuple | deque | Set):
        yield from ((f"[{index}]", part) for index, part in enumerate(list(item)))
    elif isinstance(item, types.MethodType):
        yield ".__self__", item.__self__
    elif isinstance(item, types.FunctionType):
        for cell in item.__closure__ or ():
            yield ".<closure>", cell.cell_contents
    elif isinstance(item, asyncio.Task):
        frame = getattr(item.get_coro(), "cr_frame", None)
        yield ".<locals>", {} if frame is None else dict(frame.f_locals)
    elif type(item).__module__.startswith("sandboxkit") and not isinstance(item, type):
        names = [name for kind in type(item).__mro__ for name in getattr(kind, "__slots__", ())]
        for name in {*getattr(item, "__dict__", ()), *names}:
            if hasattr(item, name):
                yield f".{name}", getattr(item, name)


async def assert_forgotten(
    make: Callable[[], Provider], count: int, *, memory_mb: int | None = None
) -> None:
    """Use up `count` sandboxes of one provider beside a second one; neither may remember any."""
    provider, other = make(), make()
    try:
        ids = await use_up(provider, other, count, memory_mb=memory_mb)
        assert len(ids) == count
        assert traces(provider, ids) == []
        assert traces(other, ids) == []
    finally:
        await Operation(other.aclose())
        await Operation(provider.aclose())


async def use_up(
    provider: Provider, other: Provider | None, count: int, *, memory_mb: int | None = None
) -> list[str]:
    """Use so many sandboxes in one session, each to another end; their ids.

    With `memory_mb`, some run out of that. `other`, a second provider of the same backend, removes
    some behind the first one's back; others it has used itself, and is not told of their end.
    """
    ends = [_stopped, _killed, _stopped_under_calls, _lost]
    if memory_mb is not None:
        ends.append(_out_of_memory)
    ids: list[str] = []
    beside: list[str] = []
    room = asyncio.Semaphore(_AT_ONCE)

    async def one(session: Session, index: int) -> None:
        async with room, asyncio.timeout(_SECONDS):
            end = ends[index % len(ends)]
            sandbox = session.sandbox()
            if end is _out_of_memory:
                sandbox = session.sandbox(memory_mb=memory_mb)
            await sandbox.start()
            assert sandbox.id is not None
            ids.append(sandbox.id)
            if other is not None and index % 3 == 0:
                beside.append(sandbox.id)
                assert await _runs(other, sandbox.id)
            await end(sandbox, provider, other or provider)
            if index % 2:  # the others are left to their session
                await sandbox.stop()
                assert not await _runs(provider, sandbox.id)

    async with Session(provider) as session, asyncio.TaskGroup() as group:
        for index in range(count):
            group.create_task(one(session, index))
    if other is not None:
        for sandbox_id in beside:
            assert not await _runs(other, sandbox_id)
    return ids


async def _runs(provider: Provider, sandbox_id: str) -> bool:
    async def output(stream: StreamName, data: bytes) -> None:
        pass

    async with asyncio.timeout(_SECONDS):
        while True:
            try:
                await Operation(provider.box(sandbox_id).exec(Command(("true",)), output))
            except _GONE:
                return False
            except ProviderUnavailableError:  # on a busy machine the backend may not answer in time
                continue
            return True


async def _stopped(sandbox: Sandbox, provider: Provider, other: Provider) -> None:
    await sandbox.exec(["true"], check=True)


async def _killed(sandbox: Sandbox, provider: Provider, other: Provider) -> None:
    with suppress(SandboxError):  # the command may be among what it kills, or the agent
        await sandbox.exec(["sh", "-c", _KILL_ALL])


async def _stopped_under_calls(sandbox: Sandbox, provider: Provider, other: Provider) -> None:
    calls = [sandbox.exec(["sh", "-c", "echo; sleep 100"]) for _ in range(3)]
    async for _line in calls[0].stdout.lines():
        break
    assert sandbox.id is not None
    late = [asyncio.create_task(_runs(provider, sandbox.id)) for _ in range(3)]
    ended = await asyncio.gather(sandbox.stop(), *calls, *late, return_exceptions=True)
    assert all(isinstance(each, SandboxError) for each in ended[1:4]), ended
    assert all(isinstance(each, SandboxError | bool) for each in ended[4:]), ended


async def _lost(sandbox: Sandbox, provider: Provider, other: Provider) -> None:
    assert sandbox.id is not None
    await Operation(other.box(sandbox.id).delete())
    for _ in range(2):
        with pytest.raises(_GONE):
            await sandbox.exec(["true"])


async def _out_of_memory(sandbox: Sandbox, provider: Provider, other: Provider) -> None:
    with suppress(SandboxError):  # the agent may be what the kernel ends
        assert (await sandbox.exec(["python3", "-c", _FILL])).returncode

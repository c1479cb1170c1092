"""What lasts in a sandbox: opened on first use, once for all who want it, and closed for good."""

import asyncio
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Protocol, Self, TypeVar

import anyio

from sandboxkit import _forks
from sandboxkit._operation import Operation
from sandboxkit._work import begun
from sandboxkit.errors import CommandStartError, SandboxError

if TYPE_CHECKING:
    from sandboxkit._sandbox import Sandbox

T = TypeVar("T")

START_SECONDS = 60.0


class Processes(Protocol):
    """What is held: it runs in the sandbox."""

    async def open(self) -> None:
        """Start them. Raises CommandStartError where the sandbox lacks what they need."""
        ...

    async def close(self) -> None:
        """End them, however far they have come, and all that they started. Idempotent."""
        ...


HeldT = TypeVar("HeldT", bound=Processes)


class Lasting(ABC, Generic[HeldT]):
    """Opens and closes what a sandbox holds. Its starts take turns; closing ends the one in flight."""

    _name: ClassVar[str]
    _late: ClassVar[str]

    def __init__(self, sandbox: "Sandbox") -> None:
        self._sandbox = sandbox
        self._pid = os.getpid()
        self._held: HeldT | None = None
        self._opening = asyncio.Lock()
        self._starting: anyio.CancelScope | None = None
        self._closing: asyncio.Task[None] | None = None
        self._closed = False

    @abstractmethod
    def _new(self) -> HeldT: ...

    @abstractmethod
    def _was_closed(self) -> SandboxError: ...

    def start(self) -> Operation[Self]:
        """Start it now rather than on first use."""

        async def run() -> Self:
            await self._opened()
            return self

        return self._operation(run)

    def close(self) -> Operation[None]:
        """End it and all that it started. Idempotent; a start in flight is undone.

        Cancelling it ends the waiting only.
        """
        return begun(self._close)

    def __enter__(self) -> Self:
        try:
            return self.start().result()
        except BaseException:
            self.close()
            raise

    def __exit__(self, *exc: object) -> None:
        self.close().result()

    async def __aenter__(self) -> Self:
        try:
            return await self.start()
        except BaseException:
            self.close()
            raise

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    # Any: as Operation takes it.
    def _operation(self, run: Callable[[], Coroutine[Any, Any, T]]) -> Operation[T]:
        _forks.refuse(self._pid, f"this {self._name}", "open one there")
        return Operation(run())

    async def _opened(self) -> HeldT:
        async with self._opening:
            if self._held is None and not self._closed:
                with anyio.CancelScope() as self._starting:
                    self._held = await self._open()
            if self._held is None or self._closed:
                raise self._was_closed()
            return self._held

    async def _open(self) -> HeldT:
        await self._sandbox.start()  # its own time, not what counts here
        held = self._new()
        try:
            with anyio.move_on_after(START_SECONDS):
                await held.open()
                return held
            raise CommandStartError(f"{self._late} within {START_SECONDS:g} s", errno=None)
        except BaseException:
            with anyio.CancelScope(shield=True):
                await held.close()
            raise

    def _close(self) -> asyncio.Task[None] | None:
        if self._pid != os.getpid():
            return None  # it is its parent's
        self._closed = True
        if self._starting is not None:
            self._starting.cancel()
        if self._closing is None or self._closing.done():
            self._closing = asyncio.create_task(self._end())
        return self._closing

    async def _end(self) -> None:
        async with self._opening:
            if self._held is not None:
                await self._held.close()

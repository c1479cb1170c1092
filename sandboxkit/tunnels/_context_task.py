"""Background tasks that hold a context manager open until it is closed or its sandbox stops."""

import asyncio
import os
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Generic, Self, TypeVar

import anyio

from sandboxkit._life._work import UndoneError, Work, leaf_of, start_detached
from sandboxkit._lifecycle import Lifecycle
from sandboxkit._operation import Operation
from sandboxkit.provider import Box

T = TypeVar("T")


class ContextTask(Generic[T]):
    """A background task that holds a context open until `leave`, or until the sandbox or session ends."""

    def __init__(
        self,
        life: Lifecycle,
        enter: Callable[[Box, "ContextTask[T]"], AbstractAsyncContextManager[T]],
    ) -> None:
        """`enter` returns the context manager; its arguments are the provider, the sandbox's id and this
        object."""
        self._life, self._enter = life, enter
        self._values: list[T] = []
        self._entered, self._left = anyio.Event(), anyio.Event()
        self._work: Work | None = None

    async def open(self, box: Box | None = None) -> T:
        """Enter the context and return its value, or raise its error.

        `box` is a sandbox whose start is in progress. None: start the sandbox if needed.
        Raises SandboxTerminatedError if the sandbox stops meanwhile.
        """
        self._work = work = await self._life.attach(self._run, box)
        try:
            await self._entered.wait()
            if not self._values:
                await work.wait()
        except asyncio.CancelledError:
            work.cancel()
            raise
        except UndoneError:
            raise self._life.was_stopped() from None
        return self._values[0]

    def leave(self) -> asyncio.Task[None]:
        """Begin to leave the context; return a task that ends once that is done."""
        self._left.set()
        return self.ended()

    def ended(self) -> asyncio.Task[None]:
        """Return a task that ends once the context was left."""
        assert self._work is not None
        return self._work.ended()

    def cancel(self) -> None:
        """Cancel the task: leave the context without closing its connections properly."""
        if self._work is not None:
            self._work.cancel()

    async def _run(self, box: Box) -> None:
        try:
            async with self._enter(box, self) as value:
                self._values.append(value)
                self._entered.set()
                await self._left.wait()
        except BaseExceptionGroup as errors:
            raise leaf_of(errors) from errors
        finally:
            self._entered.set()


def opened(
    life: Lifecycle,
    enter: Callable[[Box, ContextTask[T]], AbstractAsyncContextManager[T]],
) -> Operation[T]:
    """Open a context for a sandbox in the background and return its value; see `ContextTask`."""
    life.refuse_ended()
    hold: ContextTask[T] = ContextTask(life, enter)
    return Operation(hold.open(), lost=hold.cancel, of=life)


class ClosedOnExit:
    """The base class of objects that a `with` or `async with` block closes at its end."""

    def close(self) -> Operation[None]:
        """Close the object. Idempotent."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close().result()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()


class LoopbackPort(ClosedOnExit):
    """The base class of `Exposed` and `Served`: a loopback port that stays open until `close()`."""

    def __init__(self, hold: "ContextTask[Self]", port: int) -> None:
        self.port = port
        self._hold = hold
        self._pid = os.getpid()

    @property
    def url(self) -> str:
        """The port's address as an http:// URL, for programs that serve HTTP."""
        return f"http://127.0.0.1:{self.port}"

    def wait(self) -> Operation[None]:
        """Wait until the port is closed, or its sandbox turns out to have ended."""
        return start_detached(self._hold.ended)

    def close(self) -> Operation[None]:
        """Close the port and reset its connections. Idempotent; does nothing in a forked child."""
        if os.getpid() != self._pid:
            return Operation._completed()
        return start_detached(self._hold.leave)

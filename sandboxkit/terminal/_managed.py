"""The lifecycle of kernels and terminals: a start on first use, and one final close."""

import asyncio
import errno
import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Self, TypeVar

import anyio

from sandboxkit._life import _forks
from sandboxkit._life._work import start_detached
from sandboxkit._operation import Operation
from sandboxkit.errors import CommandStartError, CommandTimeoutError, SandboxError

if TYPE_CHECKING:
    from sandboxkit._sandbox import Sandbox

T = TypeVar("T")

START_SECONDS, CALL_SECONDS, END_SECONDS = 60.0, 60.0, 10.0
_CLOSE_SECONDS = 40.0


class Processes(ABC):
    """The processes of a terminal or kernel in a sandbox; used on the background loop only."""

    _needs: ClassVar[str]
    """The remedy that an error message gives if the sandbox lacks the program."""

    def __init__(
        self, sandbox: "Sandbox", program: str, user: str | None, env: Mapping[str, str] | None
    ) -> None:
        self._sandbox, self._program, self._user, self._env = sandbox, program, user, env
        self._tasks: list[Operation[None]] = []
        self._changed = anyio.Event()
        self._closing, self._closed = anyio.Lock(), False
        self._stopped = False
        """Whether the caller ended the processes; later errors are then not failures."""
        self.ended = False
        self.failure: SandboxError | None = None
        """The infrastructure error that ended the processes."""

    @abstractmethod
    async def open(self) -> None:
        """Start the processes. Raises CommandStartError if the sandbox lacks a program that they need."""

    @abstractmethod
    async def _close(self, at_once: bool) -> None: ...

    async def close(self, *, at_once: bool = False) -> None:
        """End the processes and all that they started, and remove their own files. Idempotent.

        `at_once` kills them without a chance to end by themselves.
        """
        self.ended = True
        self._notify()
        async with self._closing:
            if self._closed:
                return
            with anyio.move_on_after(_CLOSE_SECONDS):
                await self._close(at_once)
            for task in self._tasks:
                task.cancel()
            self._closed = True

    async def change(self) -> None:
        """Wait for the next change of state or output."""
        await self._changed.wait()

    def _notify(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()

    async def _confirm(self) -> None:
        """Check that the sandbox still runs, because a sandbox that ends kills its processes one by one.

        If it does not run, set `failure`.
        """
        await self._call(["true"])

    async def _call(self, argv: Sequence[str]) -> None:
        try:
            await self._sandbox.exec(argv, env=self._env, user=self._user, timeout=CALL_SECONDS)
        except (CommandStartError, CommandTimeoutError):
            pass  # caused inside the sandbox, which still responds
        except SandboxError as error:
            if not self._stopped:
                self.failure = self.failure or error

    def _explained(self, error: SandboxError) -> SandboxError:
        """Return `error`, with a remedy added if the sandbox lacks the program."""
        lacking = isinstance(error, CommandStartError) and error.errno == errno.ENOENT
        if not lacking or self._program not in str(error):
            return error
        return CommandStartError(
            f"{error}: {self._needs}",
            errno=errno.ENOENT,
            provider=error.provider,
            sandbox_id=error.sandbox_id,
        )


HeldT = TypeVar("HeldT", bound=Processes)


class ManagedProcess(ABC, Generic[HeldT]):
    """The lifecycle of a kernel or terminal. Starts are serialised; `close` cancels one in flight."""

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
        """Start now rather than on first use, and return this object. Raises CommandStartError."""

        async def run() -> Self:
            await self._opened()
            return self

        return self._operation(run)

    def close(self) -> Operation[None]:
        """Close for good, and end every process that was started. Idempotent; undoes a start in flight.

        Cancelling the Operation only stops waiting.
        """
        return start_detached(self._close, ended=self._sandbox._life.stopped)

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

    # Any: the coroutine's types, as Operation declares them.
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
        await self._sandbox.start()  # first: START_SECONDS does not cover the sandbox's start
        held = self._new()
        try:
            with anyio.move_on_after(START_SECONDS):
                await held.open()
                return held
            raise CommandStartError(f"{self._late} within {START_SECONDS:g} s", errno=errno.EAGAIN)
        except BaseException:
            with anyio.CancelScope(shield=True):
                await held.close()
            raise

    def _close(self) -> asyncio.Task[None] | None:
        if self._pid != os.getpid():
            return None  # a forked child does not own it
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

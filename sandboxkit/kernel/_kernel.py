"""Kernel: a persistent Python session in a sandbox."""

import asyncio
from typing import TYPE_CHECKING, Unpack

import anyio

from sandboxkit._calls import _arguments
from sandboxkit._calls._arguments import explained
from sandboxkit._calls._foreign_names import foreign_names
from sandboxkit._life import _forks
from sandboxkit._operation import Operation
from sandboxkit.errors import KernelError, SandboxError
from sandboxkit.kernel._options import KernelOptions, checked
from sandboxkit.kernel._process import KernelProcess
from sandboxkit.kernel._result import CellResult
from sandboxkit.terminal._managed import ManagedProcess

if TYPE_CHECKING:
    from sandboxkit._sandbox import Sandbox


@explained
@foreign_names
class Kernel(ManagedProcess[KernelProcess]):
    """A persistent Python in a sandbox. Made by `Sandbox.python()`; it starts on first use.

    The kernel is a Jupyter kernel if that Python has ipykernel, else sandboxkit's own small
    kernel; the results have the same type. Variables, functions, imports, the working folder and
    threads persist between cells. `restart()` and `close()` end the Python and every process that
    it started. Every call returns an Operation at once.

    Cells run one at a time: a `run` waits for earlier ones. If a cell ends the kernel, its result
    says so, and a later `run` raises KernelError. Every other error is an infrastructure failure.
    `fork(n)` copies the kernel with its variables.
    """

    _name, _late = "kernel", "no kernel started"

    def __init__(self, sandbox: "Sandbox", **options: Unpack[KernelOptions]) -> None:
        super().__init__(sandbox)
        self._options = checked(options)
        self._forks: list[Kernel] = []

    def __repr__(self) -> str:
        state = "closed" if self._closed else self.backend or "not started"
        return f"<Kernel of {self._sandbox!r}, {state}>"

    @property
    def running(self) -> bool:
        """Whether a cell is running."""
        return self._held is not None and self._held.running

    @property
    def backend(self) -> str | None:
        """The kind of kernel: "ipykernel", or "own" for sandboxkit's; None before the start."""
        return None if self._held is None else self._held.backend

    def run(
        self, code: str, *, timeout: float | None = None, grace: float = 5.0
    ) -> Operation[CellResult]:
        """Run a cell. Its result holds any exception, and how the kernel ended if the cell ended it.

        The cell is interrupted, as by Ctrl-C, `timeout` seconds after its own start. If it is still
        running `grace` seconds later, the kernel is killed and the result has `ended` set.
        Cancelling does the same at once. `input()` raises, because the cell has no terminal.
        """
        text = _arguments.code("code", code)
        timeout = _arguments.timeout(timeout)
        grace = _arguments.positive("grace", grace, unit="seconds")

        async def run() -> CellResult:
            return await (await self._opened()).run(text, timeout, grace)

        return self._operation(run)

    def interrupt(self, *, timeout: float = 5.0) -> Operation[bool]:
        """Interrupt the running cell, as by Ctrl-C, and the programs that it waits for.

        Returns whether the cell ended within `timeout` seconds; True if none was running. The
        cell's own `run` returns its result. `restart()` ends a cell that ignores interrupts.
        """
        patience = _arguments.positive("timeout", timeout, unit="seconds")

        async def run() -> bool:
            return self._held is None or await self._held.interrupt(patience)

        return self._operation(run)

    def fork(self, n: int) -> "Operation[list[Kernel | SandboxError]]":
        """Fork the Python `n` times. Each fork is a kernel of its own, in the same sandbox, that begins
        with this one's variables, imports and working folder; memory is shared until one of them changes it.

        Each entry is a running kernel, or the error of its start. Whatever ends one of them leaves the
        others running, except that `close()` closes a kernel's forks too. Open files are shared, as after
        `os.fork`; threads, child processes and event loops are not inherited.

        Raises KernelError if a cell runs, the kernel has ended, or its Python has other threads or
        unfinished asyncio tasks, and ConfigurationError for ipykernel, which has threads. Nothing was
        forked then.
        """
        count = _arguments.integer("n", n)
        forks: list[Kernel] = []

        async def run() -> list[Kernel | SandboxError]:
            found = await (await self._opened()).fork(count)
            kernels = [each if isinstance(each, SandboxError) else self._of(each) for each in found]
            forks.extend(each for each in kernels if isinstance(each, Kernel))
            self._forks = [*(each for each in self._forks if not each._closed), *forks]
            if self._closed:
                await self._close_forks()
                raise self._was_closed()
            return kernels

        def lost() -> None:
            for each in forks:
                each._close()

        _forks.refuse(self._pid, "this kernel", "open one there")
        return Operation(run(), lost=lost)

    def _of(self, held: KernelProcess) -> "Kernel":
        fork = Kernel(self._sandbox)
        fork._options, fork._held = self._options, held
        return fork

    async def _close_forks(self) -> None:
        for closing in [fork._close() for fork in self._forks]:
            if closing is not None:
                await closing

    async def _end(self) -> None:
        await asyncio.gather(super()._end(), self._close_forks())

    def restart(self) -> Operation[None]:
        """End the kernel and every process that it started, then start a fresh one.

        A running cell's outcome is INTERRUPTED. Files that cells made remain, and so do forks.
        """

        async def run() -> None:
            async with self._opening:
                held, self._held = self._held, None
                if held is not None:
                    with anyio.CancelScope(shield=True):
                        await held.close()
            await self._opened()

        return self._operation(run)

    def _new(self) -> KernelProcess:
        return KernelProcess(self._sandbox, self._options)

    def _was_closed(self) -> KernelError:
        return KernelError("this kernel was closed: open another with sandbox.python()")

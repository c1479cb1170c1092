"""Kernel: a Python that lasts, in a sandbox."""

from typing import TYPE_CHECKING, Unpack

import anyio

from sandboxkit import _arguments
from sandboxkit._operation import Operation
from sandboxkit.errors import KernelError
from sandboxkit.kernel._held import Held
from sandboxkit.kernel._options import KernelOptions, checked
from sandboxkit.kernel._result import CellResult
from sandboxkit.terminal._lasting import Lasting

if TYPE_CHECKING:
    from sandboxkit._sandbox import Sandbox


class Kernel(Lasting[Held]):
    """A Python of one sandbox that lasts. Made by `Sandbox.python()`; it starts on first use.

    It is a Jupyter kernel where that Python has ipykernel, else a small one of ours; results are of
    the same type. Variables, functions, imports, the working folder and threads last from cell to
    cell, until `restart()` or `close()`, which end the Python and all that it started. Every call
    returns at once with an Operation.

    One cell runs at a time: a `run` waits for those before it. What a cell does to the kernel is its
    result; where the kernel has ended since, `run` raises KernelError. Every other error is the
    infrastructure's.
    """

    _name, _late = "kernel", "no kernel started"

    def __init__(self, sandbox: "Sandbox", **options: Unpack[KernelOptions]) -> None:
        super().__init__(sandbox)
        self._options = checked(options)

    def __repr__(self) -> str:
        state = "closed" if self._closed else self.backend or "not started"
        return f"<Kernel of {self._sandbox!r}, {state}>"

    @property
    def running(self) -> bool:
        """Whether a cell runs."""
        return self._held is not None and self._held.running

    @property
    def backend(self) -> str | None:
        """ "ipykernel", or "own" for the small kernel of ours; None before the start."""
        return None if self._held is None else self._held.backend

    def run(
        self, code: str, *, timeout: float | None = None, grace: float = 5.0
    ) -> Operation[CellResult]:
        """Run a cell. What it raises is in its result, and so is how the kernel ended under it.

        After `timeout` seconds from its own start it is interrupted, as by Ctrl-C. Where it has not
        ended `grace` seconds later, the kernel is killed, and the result says so with `ended`.
        Cancelling does the same at once. `input()` raises: nobody is there to answer.
        """
        text = _arguments.code("code", code)
        timeout = _arguments.timeout(timeout)
        grace = _arguments.positive("grace", grace, unit="seconds")

        async def run() -> CellResult:
            return await (await self._opened()).run(text, timeout, grace)

        return self._operation(run)

    def interrupt(self, *, timeout: float = 5.0) -> Operation[bool]:
        """Interrupt the cell that runs, as by Ctrl-C, and the programs that it waits for.

        Returns whether it has ended within `timeout` seconds, True too where none runs. Its own
        `run` has the result. What does not heed it is ended by `restart()`.
        """
        patience = _arguments.positive("timeout", timeout, unit="seconds")

        async def run() -> bool:
            return self._held is None or await self._held.interrupt(patience)

        return self._operation(run)

    def restart(self) -> Operation[None]:
        """End the kernel and all that it started, and start another: no state is left.

        A cell that runs is INTERRUPTED. The files that cells made stay.
        """

        async def run() -> None:
            async with self._opening:
                held, self._held = self._held, None
                if held is not None:
                    with anyio.CancelScope(shield=True):
                        await held.close()
            await self._opened()

        return self._operation(run)

    def _new(self) -> Held:
        return Held(self._sandbox, self._options)

    def _was_closed(self) -> KernelError:
        return KernelError("this kernel was closed: open another with sandbox.python()")

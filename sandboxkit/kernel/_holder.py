"""The command that runs a kernel's holder process; a kernel and its forks share it."""

import secrets
from contextlib import suppress
from typing import TYPE_CHECKING

import anyio

from sandboxkit._operation import Operation
from sandboxkit._process import Process
from sandboxkit.errors import SandboxError
from sandboxkit.kernel import _messages
from sandboxkit.types import ProcessResult

if TYPE_CHECKING:
    from sandboxkit._sandbox import Sandbox
    from sandboxkit.kernel._process import KernelProcess


class HolderCommand:
    """A holder process in the sandbox, and the kernels to which its messages go; background loop only."""

    def __init__(self, process: Process, output_limit: int) -> None:
        self.process, self.token = process, secrets.token_hex(16)
        self._longest = 16 * output_limit + (1 << 20)
        self._kernels: dict[int, KernelProcess] = {}
        self._joined = 0
        self._watch: Process | None = None
        self._counted: Operation[None] | None = None
        self._memory_kills, self._counting = 0, anyio.Lock()
        self._blind = False
        """Whether memory kills could not be counted, so that only the holder's own result tells them."""
        self._task = Operation(self._listen())

    def join(self, kernel: "KernelProcess") -> int:
        """Deliver the messages about a kernel to it; return the number by which the holder knows it."""
        number, self._joined = self._joined, self._joined + 1
        self._kernels[number] = kernel
        return number

    def leave(self, kernel: "KernelProcess") -> None:
        """Forget a kernel that was closed. After the last one nothing more is read."""
        self._kernels = {n: each for n, each in self._kernels.items() if each is not kernel}
        if not self._kernels:
            self._task.cancel()
            if self._watch is not None:
                self._watch.kill()

    def has_others(self, kernel: "KernelProcess") -> bool:
        """Whether the holder has another kernel that has not ended."""
        return any(not each.ended for each in self._kernels.values() if each is not kernel)

    async def write(self, data: bytes) -> None:
        """Write to the holder's standard input, if it still runs."""
        with suppress(BrokenPipeError):  # it has ended, which _listen notices
            await self.process.stdin.write(data)

    async def count_memory_kills(self, sandbox: "Sandbox") -> None:
        """Begin to count what the OOM killer kills in the sandbox.

        A command's result has the number of memory kills while it ran. The holder runs until the last
        kernel has ended, so a second command, which only waits, is ended to learn the number earlier.
        """
        if self._watch is None:
            self._watch = watch = sandbox.exec(["cat"], stdin=True)
            self._counted = Operation(self._count(watch))
            with suppress(BrokenPipeError):  # it could not start
                await watch.stdin.write(b"\n")
                await watch.stdout._next()  # it runs

    async def took_memory_kill(self, sandbox: "Sandbox", result: ProcessResult | None) -> bool:
        """Whether the OOM killer killed a process that was not counted for another kernel yet.

        `result` is that of the holder process; it is enough for a kernel that was never forked.
        """
        async with self._counting:
            watch, counted = self._watch, self._counted
            if watch is None or counted is None or self._blind:
                return bool(result and result.usage.oom_kills)
            with suppress(BrokenPipeError):
                await watch.stdin.close()
            await counted
            self._watch = None
            await self.count_memory_kills(sandbox)
            found = self._memory_kills > 0
            self._memory_kills -= found
            return found

    async def _count(self, watch: Process) -> None:
        try:
            result = await watch
            self._memory_kills += result.usage.oom_kills or 0
        except SandboxError:
            # The sandbox has ended, which the holder's result tells, or has no room for a command.
            self._blind = True

    async def _listen(self) -> None:
        rest = bytearray()
        while (chunk := await self.process.stdout._next()) is not None:
            rest += chunk
            if b"\n" in chunk:
                *lines, rest = rest.split(b"\n")
                for line in lines:
                    self._deliver(bytes(line))
            elif len(rest) > self._longest:
                rest.clear()  # the holder writes no line of this length
        with suppress(SandboxError):  # each kernel awaits the process too, and raises its error
            await self.process
        for kernel in list(self._kernels.values()):
            kernel.holder_ended()

    def _deliver(self, line: bytes) -> None:
        if (message := _messages.message(line, self.token)) is not None:
            number = message.get("kernel")
            if isinstance(number, int) and number in self._kernels:
                self._kernels[number].receive(message)

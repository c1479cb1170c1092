"""The processes of a kernel in the sandbox, and the protocol to run cells in them."""

import json
import secrets
import signal
import time
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import anyio

from sandboxkit._operation import Operation
from sandboxkit._process import Process
from sandboxkit.bundle import bundle
from sandboxkit.errors import CommandStartError, ConfigurationError, KernelError, SandboxError
from sandboxkit.kernel import _messages
from sandboxkit.kernel._options import Options
from sandboxkit.kernel._result import CellError, CellOutcome, CellResult
from sandboxkit.kernel.in_sandbox.piped import START
from sandboxkit.terminal._managed import END_SECONDS, START_SECONDS, Processes
from sandboxkit.types import Ending, ProcessResult

if TYPE_CHECKING:
    from sandboxkit._sandbox import Sandbox

_AGAIN_SECONDS = 1.0
"""Seconds until an interrupt is repeated, because a handler may have swallowed the first."""
_KEPT = 1 << 16
_PACKAGE = "sandboxkit.kernel.in_sandbox"
_HOLDER = ("ends", "kept", "supervised", "notebook", "piped", "holder")
_INTERRUPTS = ("KeyboardInterrupt", "CancelledError")  # CancelledError if the cell awaits


class KernelProcess(Processes):
    """One kernel in the sandbox, under a holder process; background loop only.

    `holder` is None for a kernel that `open` starts with a holder of its own; forks share that of
    their origin.
    """

    _needs = (
        "a kernel needs a Python in the image; use an image that has one, or name it with python="
    )

    def __init__(
        self, sandbox: "Sandbox", options: Options, holder: "HolderCommand | None" = None
    ) -> None:
        super().__init__(sandbox, options.python, options.user, options.env)
        self._options, self._holder = options, holder
        self._mark = secrets.token_hex(8)
        self._id = 0 if holder is None else holder.join(self)
        self._outputs = _messages.Outputs(options.output_limit)
        self._turn, self._clean = anyio.Lock(), False
        self._number = 0
        # Any: JSON that the sandbox wrote.
        self._done: dict[str, Any] | None = None
        self._over: dict[str, Any] | None = None
        self._interrupted = self._refused = False
        self._failed = ""
        self.backend: str | None = None
        self.running = False
        self.how: tuple[Ending, str] | None = None
        """How the kernel ended, and a description for messages; None until it is known."""

    async def open(self) -> None:
        """Start the kernel. Raises CommandStartError if the sandbox lacks a suitable Python or ipykernel."""
        options = self._options
        process = self._sandbox.exec(
            [options.python, "-c", START],
            cwd=options.cwd,
            env=options.env,
            user=options.user,
            stdin=True,
            output_limit=_KEPT,
        )
        self._holder = holder = HolderCommand(process, options.output_limit)
        self._id = holder.join(self)
        program = bundle(_PACKAGE, *_HOLDER)
        kernels = bundle(_PACKAGE, "pipe", "own"), bundle(_PACKAGE, "pipe", "in_notebook")
        given = *kernels, holder.token, self._mark, options.output_limit, options.ipykernel
        await holder.write(f"exec({program!a}); module.Holder(*{given!a}).serve()\n".encode())
        while self.backend is None and not self.ended:
            await self.change()
        if self.ended:
            result = await self._result(process)
            if self.failure is None:
                await self._confirm()
            if self.failure is not None:
                raise self.failure
            why = self._failed
            if result is not None and not why:
                why = f"status {result.returncode}, {result.stderr.strip()[-1000:]}"
            raise CommandStartError(
                f"a kernel cannot start with {options.python!r}: {why}; it needs Python 3.8 or later, "
                "and with ipykernel=True a working ipykernel",
                errno=None,
            )

    async def run(self, code: str, seconds: float | None, grace: float) -> CellResult:
        """Run a cell after all earlier ones, with a timeout of `seconds`; see `Kernel.run`.

        Raises KernelError if the kernel has ended, and `failure` if the infrastructure failed.
        """
        async with self._turn:
            await self._refuse_ended()
            self._number += 1
            self._done, self._interrupted = None, False
            self.running = True
            try:
                return await self._run(code, seconds, grace)
            finally:
                self.running = False
                self._notify()

    async def _run(self, code: str, seconds: float | None, grace: float) -> CellResult:
        started, late = time.monotonic(), False
        try:
            with anyio.move_on_after(seconds):
                await self._request("run", number=self._number, code=code)
                await self._finished()
            if not self._is_finished():
                late = True
                await self._stop(grace)
        except BaseException:
            with anyio.CancelScope(shield=True):
                await self._stop(grace)
                self._outputs.take()
            raise
        message = self._done
        if message is None:
            with anyio.CancelScope(shield=True):
                await self.close()
            if self.failure is not None:
                raise self.failure
            message = self._over or {}
        outputs, dropped = self._outputs.take()
        duration, dropped = time.monotonic() - started, dropped or message.get("truncated") is True
        if self._done is None:
            outcome, why = self._outcome(late, grace)
            ending = self.how[0] if self.how else Ending.KILLED
            error = CellError("KernelEnded", f"{why}; its state is gone")
            return CellResult(outcome, outputs, error, None, duration, dropped, ending)
        failed, count = _messages.error(message.get("error")), message.get("count")
        outcome = CellOutcome.ERROR if failed else CellOutcome.OK
        if late:
            outcome = CellOutcome.TIMED_OUT
            failed = failed or CellError("TimeoutError", f"the cell ran past its {seconds:g} s")
        elif failed and self._interrupted and failed.name in _INTERRUPTS:
            outcome = CellOutcome.INTERRUPTED
        return CellResult(
            outcome, outputs, failed, count if isinstance(count, int) else None, duration, dropped
        )

    def _outcome(self, late: bool, grace: float) -> tuple[CellOutcome, str]:
        if late and self._stopped:
            return CellOutcome.TIMED_OUT, (
                f"the cell ran past its timeout and ignored an interrupt for {grace:g} s, so the "
                "kernel was killed"
            )
        if late:
            return (
                CellOutcome.TIMED_OUT,
                f"the cell ran past its timeout, and {self._describe_end()}",
            )
        if self._stopped:
            return CellOutcome.INTERRUPTED, "the kernel was restarted or closed"
        return CellOutcome.DIED, self._describe_end()

    def _describe_end(self) -> str:
        return self.how[1] if self.how else "the kernel was ended"

    async def interrupt(self, patience: float) -> bool:
        """Interrupt the running cell; return whether it ended within `patience` seconds."""
        number = self._number
        self._interrupted = True
        with anyio.move_on_after(patience):
            while self.running and self._number == number:
                if not self._is_finished():
                    await self._interrupt()
                with anyio.move_on_after(_AGAIN_SECONDS):
                    while self.running and self._number == number:
                        await self.change()
        return not self.running or self._number != number

    async def _stop(self, grace: float) -> None:
        """Interrupt the cell; kill the kernel if the cell has not ended after `grace` seconds."""
        with anyio.move_on_after(grace):
            while not self._is_finished():
                await self._interrupt()
                with anyio.move_on_after(_AGAIN_SECONDS):
                    await self._finished()
        if not self._is_finished():
            with anyio.CancelScope(shield=True):
                await self.close(at_once=True)

    async def _interrupt(self) -> None:
        await self._request("interrupt", number=self._number)

    def _is_finished(self) -> bool:
        return self._done is not None or self.ended

    async def _finished(self) -> None:
        while not self._is_finished():
            await self.change()

    async def _refuse_ended(self) -> None:
        """Raise the infrastructure's error, or KernelError if the kernel has ended."""
        if self.ended:
            with anyio.CancelScope(shield=True):
                await self.close()  # determines how the kernel ended by itself
        if self.failure is not None:
            raise self.failure
        if self.ended:
            raise KernelError(
                f"the kernel has ended ({self._describe_end()}), and the state of its cells is gone: call "
                "restart()"
            )

    async def close(self, *, at_once: bool = False) -> None:
        """End the kernel and every process that it started, and remove its own files. Idempotent."""
        if self._over is None and not self.ended:
            self._stopped = True
        await super().close(at_once=at_once)

    async def fork(self, count: int) -> "list[KernelProcess | SandboxError]":
        """Fork the kernel `count` times; return each fork, or the error of its start.

        Raises KernelError if nothing can be forked now, or ConfigurationError if never.
        """
        if self._turn.locked():
            raise KernelError(
                "the kernel runs a cell, or another fork() is under way: fork it when that has ended"
            )
        async with self._turn:
            await self._refuse_ended()
            holder = self._holder
            assert holder is not None
            if self.backend != "own":
                raise ConfigurationError(
                    "a Jupyter kernel has threads and cannot be forked: open the kernel with "
                    "sandbox.python(ipykernel=False)"
                )
            await holder.count_memory_kills(self._sandbox)
            forks = [KernelProcess(self._sandbox, self._options, holder) for _ in range(count)]
            try:
                for fork in forks:
                    await self._request("fork", fork=fork._id, mark=fork._mark)
                with anyio.move_on_after(START_SECONDS):
                    for fork in forks:
                        while fork.backend is None and not fork.ended:
                            await fork.change()
                results = [await self._forked(fork) for fork in forks]
            except BaseException:
                with anyio.CancelScope(shield=True):
                    for fork in forks:
                        await fork.close(at_once=True)
                raise
            if all(fork._refused for fork in forks) and isinstance(results[0], SandboxError):
                raise results[0]
            return results

    async def _forked(self, fork: "KernelProcess") -> "KernelProcess | SandboxError":
        """Return the fork, or if it has not started, the reason."""
        if fork.backend is not None:
            return fork
        late = not fork.ended
        await fork.close(at_once=True)
        why = f"it did not start within {START_SECONDS:g} s" if late else fork._failed
        return fork.failure or KernelError(
            f"the kernel was not forked: {why or fork._describe_end()}"
        )

    async def _close(self, at_once: bool) -> None:
        holder = self._holder
        if holder is None:
            return
        try:
            result = None
            if not (holder.has_others(self) and await self._end_alone(holder)):
                await self._end_holder(holder, at_once)
                result = await self._result(holder.process)
                if result is None:
                    return
            if not self._clean:
                await self._sweep()
            if self._over is not None:
                await self._confirm()
                killed = self.failure is None and self._over.get("status") == -signal.SIGKILL
                self.how = _ended(
                    self._over, killed and await self._took_memory_kill(holder, result)
                )
            elif result is not None and not self._stopped:
                self.how = _broken(result)
        finally:
            holder.leave(self)

    async def _took_memory_kill(
        self, holder: "HolderCommand", result: ProcessResult | None
    ) -> bool:
        try:
            return await holder.took_memory_kill(self._sandbox, result)
        except SandboxError as error:
            self.failure = self.failure or error
            return False

    async def _end_alone(self, holder: "HolderCommand") -> bool:
        """End this kernel under a holder that goes on; return False if the holder does not respond."""
        if not (self._clean or self._over):
            await self._request("end")
        with anyio.move_on_after(END_SECONDS):
            while not (self._clean or self._over or holder.process.done()):
                await self.change()
            return not holder.process.done()
        return False

    async def _end_holder(self, holder: "HolderCommand", at_once: bool) -> None:
        process = holder.process
        if not at_once and self.backend is not None:
            with suppress(BrokenPipeError):
                await process.stdin.close()
            with anyio.move_on_after(END_SECONDS):
                while not (self._clean or self._over or process.done()):
                    await self.change()
                while self._over and not process.done():
                    await self.change()  # an exit by itself reports its resource usage
        if not process.done():
            process.kill()

    async def _result(self, process: Process) -> ProcessResult | None:
        """Wait for the holder process and return its result; None if the infrastructure failed."""
        try:
            return await process
        except SandboxError as error:
            self.failure = self.failure or self._explained(error)
            return None

    async def _sweep(self) -> None:
        # Isolated (-I), because a file of the user's may have the name of an imported module.
        program = bundle(_PACKAGE, "ends") + f"module.end_all({self._mark!r})"
        await self._call([self._options.python, "-I", "-c", program])

    # Any: JSON values.
    async def _request(self, kind: str, **fields: Any) -> None:
        assert self._holder is not None
        request = {"do": kind, "kernel": self._id, **fields}
        await self._holder.write(json.dumps(request).encode() + b"\n")

    def holder_ended(self) -> None:
        """Note that the holder process has ended, and so has the kernel."""
        self.ended = True
        self._notify()

    # Any: JSON that the sandbox wrote; each value is checked before use.
    def receive(self, message: dict[str, Any]) -> None:
        """Handle a message that the holder sent about this kernel."""
        self._outputs.add(message.get("items"))
        match message.get("say"):
            case "ready":
                self.backend = str(message.get("backend"))
            case "done" if message.get("number") == self._number:
                self._done = message
            case "over":
                self._over, self._clean = message, message.get("clean") is True
                self.ended = True
            case "ended" if self._over is None:
                self._clean = True
            case "failed":
                self._failed, self._clean = str(message.get("why")), True
                self._refused, self.ended = message.get("refused") is True, True
        self._notify()


def _ended(message: dict[str, Any], memory_kill: bool) -> tuple[Ending, str]:
    """Return how the kernel ended and a description of it, from the holder's report `message`.

    `memory_kill`: whether that was the OOM killer.
    """
    status = message.get("status")
    if not isinstance(status, int) or status >= 0:
        return Ending.EXITED, f"the kernel ended with status {status}"
    if memory_kill:
        return Ending.OUT_OF_MEMORY, "the kernel ran out of the sandbox's memory and was killed"
    why = f": {message['why']}" if message.get("why") else ""
    return Ending.SIGNAL, f"the kernel was killed by signal {-status}{why}"


def _broken(result: ProcessResult) -> tuple[Ending, str]:
    """Return how the holder process ended, and a description of it.

    Call it only if the holder ended without a report, which only a program in the sandbox can cause.
    """
    if result.ending is Ending.OUT_OF_MEMORY:
        return Ending.OUT_OF_MEMORY, "the kernel's supervisor ran out of the sandbox's memory"
    ending = result.ending or (Ending.SIGNAL if result.returncode > 128 else Ending.EXITED)
    return ending, f"the kernel's supervisor in the sandbox ended with status {result.returncode}"


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

    def join(self, kernel: KernelProcess) -> int:
        """Deliver the messages about a kernel to it; return the number by which the holder knows it."""
        number, self._joined = self._joined, self._joined + 1
        self._kernels[number] = kernel
        return number

    def leave(self, kernel: KernelProcess) -> None:
        """Forget a kernel that was closed. After the last one nothing more is read."""
        self._kernels = {n: each for n, each in self._kernels.items() if each is not kernel}
        if not self._kernels:
            self._task.cancel()
            if self._watch is not None:
                self._watch.kill()

    def has_others(self, kernel: KernelProcess) -> bool:
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

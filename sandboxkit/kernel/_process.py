"""The processes of a kernel in the sandbox, and the protocol to run cells in them."""

import json
import secrets
import time
from contextlib import suppress
from functools import cache
from importlib import resources
from typing import TYPE_CHECKING, Any

import anyio

from sandboxkit._operation import Operation
from sandboxkit._process import Process
from sandboxkit.errors import CommandStartError, KernelError, SandboxError
from sandboxkit.kernel import _messages
from sandboxkit.kernel._options import Options
from sandboxkit.kernel._result import CellError, CellOutcome, CellResult
from sandboxkit.terminal._managed import END_SECONDS, Processes
from sandboxkit.types import Ending, ProcessResult

if TYPE_CHECKING:
    from sandboxkit._sandbox import Sandbox

_AGAIN_SECONDS = 1.0
"""Seconds until an interrupt is repeated, because a handler may have swallowed the first."""
_KEPT = 1 << 16
_HOLDER = ("ends", "kept", "notebook", "piped", "holder")
_INTERRUPTS = ("KeyboardInterrupt", "CancelledError")  # CancelledError if the cell awaits
_BOOT = """\
import sys
sys.path[:] = [each for each in sys.path if each]
import json, os
def take(size):
    data = b""
    while len(data) < size:
        data += os.read(@FROM@, size - len(data)) or os._exit(1)
    return data
given = json.loads(take(int(take(8))))
names = {"given": given, "__name__": "sandboxkit"}
for each in given["program"]:
    exec(compile(each, "<sandboxkit>", "exec"), names)
"""
"""Reads its program from stdin, so that the command line in process lists stays short."""


@cache
def _source(name: str) -> str:
    return resources.files("sandboxkit.kernel.in_sandbox").joinpath(f"{name}.py").read_text()


class KernelProcess(Processes):
    """One kernel and the holder process that manages it in the sandbox; background loop only."""

    _needs = (
        "a kernel needs a Python in the image; use an image that has one, or name it with python="
    )

    def __init__(self, sandbox: "Sandbox", options: Options) -> None:
        super().__init__(sandbox, options.python, options.user, options.env)
        self._options = options
        self._mark, self._token = secrets.token_hex(8), secrets.token_hex(16)
        self._outputs = _messages.Outputs(options.output_limit)
        self._process: Process | None = None
        self._turn, self._clean = anyio.Lock(), False
        self._number = 0
        # Any: JSON that the sandbox wrote.
        self._done: dict[str, Any] | None = None
        self._over: dict[str, Any] | None = None
        self._interrupted = False
        self._failed = ""
        self.backend: str | None = None
        self.running = False
        self.how: tuple[Ending, str] | None = None
        """How the kernel ended, and a description for messages; None until it is known."""

    async def open(self) -> None:
        """Start the kernel. Raises CommandStartError if the sandbox lacks a suitable Python or ipykernel."""
        options = self._options
        self._process = self._sandbox.exec(
            [options.python, "-c", _BOOT.replace("@FROM@", "0")],
            cwd=options.cwd,
            env=options.env,
            user=options.user,
            stdin=True,
            output_limit=_KEPT,
        )
        self._tasks.append(Operation(self._listen(self._process)))
        given = {
            "program": [*map(_source, _HOLDER), "main()"],
            "own": [_source("pipe"), _source("own")],
            "in_notebook": [_source("pipe"), _source("in_notebook")],
            "boot": _BOOT,
            "options": {
                "token": self._token,
                "mark": self._mark,
                "limit": options.output_limit,
                "ipykernel": options.ipykernel,
            },
        }
        data = json.dumps(given).encode()
        await self._write(b"%08d" % len(data) + data)
        while self.backend is None and not self.ended:
            await self.change()
        if self.ended:
            result = await self._result()
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
            if self.ended:
                with anyio.CancelScope(shield=True):
                    await self.close()  # determines how the kernel ended by itself
            self._refuse_ended()
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
        request = {"do": "run", "number": self._number, "code": code}
        try:
            with anyio.move_on_after(seconds):
                await self._write(json.dumps(request).encode() + b"\n")
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
        request = {"do": "interrupt", "number": self._number}
        await self._write(json.dumps(request).encode() + b"\n")

    def _is_finished(self) -> bool:
        return self._done is not None or self.ended

    async def _finished(self) -> None:
        while not self._is_finished():
            await self.change()

    def _refuse_ended(self) -> None:
        """Raise the infrastructure's error, or KernelError if the kernel has ended."""
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

    async def _close(self, at_once: bool) -> None:
        process = self._process
        if process is None:
            return
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
        result = await self._result()
        if result is None:
            return
        if not self._clean:
            await self._sweep()
        if self._over is not None:
            await self._confirm()
            self.how = _ended(self._over, result)
        elif not self._stopped:
            self.how = _broken(result)

    async def _result(self) -> ProcessResult | None:
        """Wait for the holder process and return its result; None if the infrastructure failed."""
        assert self._process is not None
        try:
            return await self._process
        except SandboxError as error:
            self.failure = self.failure or self._explained(error)
            return None

    async def _sweep(self) -> None:
        # Isolated (-I), because a file of the user's may have the name of an imported module.
        await self._call([self._options.python, "-I", "-c", _source("ends"), self._mark])

    async def _write(self, data: bytes) -> None:
        assert self._process is not None
        with suppress(BrokenPipeError):  # the process has ended, which _listen notices
            await self._process.stdin.write(data)

    async def _listen(self, process: Process) -> None:
        rest, most = bytearray(), 16 * self._options.output_limit + (1 << 20)
        while (chunk := await process.stdout._next()) is not None:
            rest += chunk
            if b"\n" in chunk:
                *lines, rest = rest.split(b"\n")
                for line in lines:
                    if (message := _messages.message(bytes(line), self._token)) is not None:
                        self._receive(message)
            elif len(rest) > most:
                rest.clear()  # the holder writes no line of this length
        await self._result()
        self.ended = True
        self._notify()

    # Any: JSON that the sandbox wrote; each value is checked before use.
    def _receive(self, message: dict[str, Any]) -> None:
        self._outputs.add(message.get("items"))
        match message.get("say"):
            case "ready":
                self.backend = str(message.get("backend"))
            case "done" if message.get("number") == self._number:
                self._done = message
            case "over":
                self._over, self._clean = message, message.get("clean") is True
            case "ended":
                self._clean = True
            case "failed":
                self._failed, self._clean = str(message.get("why")), True
        self._notify()


def _ended(message: dict[str, Any], result: ProcessResult) -> tuple[Ending, str]:
    """Return how the kernel ended and a description of it, from the holder's report `message`."""
    status = message.get("status")
    if not isinstance(status, int) or status >= 0:
        return Ending.EXITED, f"the kernel ended with status {status}"
    if status == -9 and result.usage.oom_kills:
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

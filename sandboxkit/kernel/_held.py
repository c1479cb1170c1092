"""A kernel's processes, from their start to their end, and the cells that they run."""

import errno
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
from sandboxkit.errors import CommandStartError, CommandTimeoutError, KernelError, SandboxError
from sandboxkit.kernel import _said
from sandboxkit.kernel._options import Options
from sandboxkit.kernel._result import CellError, CellResult, Outcome
from sandboxkit.types import Ending, ProcessResult

if TYPE_CHECKING:
    from sandboxkit._sandbox import Sandbox

_END_SECONDS, _CLOSE_SECONDS, _CALL_SECONDS = 10.0, 40.0, 60.0
_AGAIN_SECONDS = 1.0
"""Between two interrupts: a handler that catches everything may have eaten the first."""
_KEPT = 1 << 16
_HOLDER = ("ends", "kept", "notebook", "piped", "holder")
_INTERRUPTS = ("KeyboardInterrupt", "CancelledError")  # the second where a cell awaits
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
"""Reads what it runs, so that a list of processes stays short."""


@cache
def _source(name: str) -> str:
    return resources.files("sandboxkit.kernel.in_sandbox").joinpath(f"{name}.py").read_text()


class Held:
    """One kernel and what holds it in the sandbox. All of it is used on the background loop only."""

    def __init__(self, sandbox: "Sandbox", options: Options) -> None:
        self._sandbox, self._options = sandbox, options
        self._mark, self._token = secrets.token_hex(8), secrets.token_hex(16)
        self._outputs = _said.Outputs(options.output_limit)
        self._process: Process | None = None
        self._listening: Operation[None] | None = None
        self._changed = anyio.Event()
        self._turn, self._closing = anyio.Lock(), anyio.Lock()
        self._closed = self._clean = False
        self._number = 0
        # Any: JSON that the sandbox wrote.
        self._done: dict[str, Any] | None = None
        self._over: dict[str, Any] | None = None
        self._asked_to_stop = self._stopped = False
        self._failed = ""
        self.backend: str | None = None
        self.running = False
        self.ended = False
        """Whether there is no kernel any more."""
        self.how: tuple[Ending, str] | None = None
        """How it ended, once that is known."""
        self.failure: SandboxError | None = None
        """Where it ended by a failure of the infrastructure's."""

    async def open(self) -> None:
        """Start it. Raises CommandStartError where the sandbox lacks what it needs."""
        options = self._options
        self._process = self._sandbox.exec(
            [options.python, "-c", _BOOT.replace("@FROM@", "0")],
            cwd=options.cwd,
            env=options.env,
            user=options.user,
            stdin=True,
            output_limit=_KEPT,
        )
        self._listening = Operation(self._listen(self._process))
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
            await self._changed.wait()
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
        """Run a cell once those before it have ended. Raises KernelError where the kernel has."""
        async with self._turn:
            if self.ended:
                with anyio.CancelScope(shield=True):
                    await self.close()  # by itself, and nobody has looked yet how
            self._refuse_ended()
            self._number += 1
            self._done, self._asked_to_stop = None, False
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
        said = self._done
        if said is None:
            with anyio.CancelScope(shield=True):
                await self.close()
            if self.failure is not None:
                raise self.failure
            said = self._over or {}
        outputs, dropped = self._outputs.take()
        duration, dropped = time.monotonic() - started, dropped or said.get("truncated") is True
        if self._done is None:
            outcome, why = self._explained(late, grace)
            ending = self.how[0] if self.how else Ending.KILLED
            error = CellError("KernelEnded", f"{why}; its state is gone")
            return CellResult(outcome, outputs, error, None, duration, dropped, ending)
        failed, count = _said.error(said.get("error")), said.get("count")
        outcome = Outcome.ERROR if failed else Outcome.OK
        if late:
            outcome = Outcome.TIMED_OUT
            failed = failed or CellError("TimeoutError", f"the cell ran past its {seconds:g} s")
        elif failed and self._asked_to_stop and failed.name in _INTERRUPTS:
            outcome = Outcome.INTERRUPTED
        return CellResult(
            outcome, outputs, failed, count if isinstance(count, int) else None, duration, dropped
        )

    def _explained(self, late: bool, grace: float) -> tuple[Outcome, str]:
        if late and self._stopped:
            return Outcome.TIMED_OUT, (
                f"the cell ran past its timeout and did not heed an interrupt for {grace:g} s, so the "
                "kernel was killed"
            )
        if late:
            return Outcome.TIMED_OUT, f"the cell ran past its timeout, and {self._said_of_end()}"
        if self._stopped:
            return Outcome.INTERRUPTED, "the kernel was restarted or closed"
        return Outcome.DIED, self._said_of_end()

    def _said_of_end(self) -> str:
        return self.how[1] if self.how else "the kernel was ended"

    async def interrupt(self, patience: float) -> bool:
        """Interrupt the cell that runs; whether none does any more after `patience` seconds."""
        number = self._number
        self._asked_to_stop = True
        with anyio.move_on_after(patience):
            while self.running and self._number == number:
                if not self._is_finished():
                    await self._interrupt()
                with anyio.move_on_after(_AGAIN_SECONDS):
                    while self.running and self._number == number:
                        await self._changed.wait()
        return not self.running or self._number != number

    async def _stop(self, grace: float) -> None:
        """Interrupt the cell, and kill the kernel where that does not end it."""
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
            await self._changed.wait()

    def _refuse_ended(self) -> None:
        """Raise what keeps it from running anything."""
        if self.failure is not None:
            raise self.failure
        if self.ended:
            raise KernelError(
                f"the kernel has ended ({self._said_of_end()}), and the state of its cells is gone: "
                "restart() it"
            )

    async def close(self, *, at_once: bool = False) -> None:
        """End it and all that it started, and remove what it has made. Idempotent."""
        if self._over is None and not self.ended:
            self._stopped = True
        self.ended = True
        self._notify()
        async with self._closing:
            if self._closed:
                return
            with anyio.move_on_after(_CLOSE_SECONDS):
                await self._close(at_once)
            if self._listening is not None:
                self._listening.cancel()
            self._closed = True

    async def _close(self, at_once: bool) -> None:
        process = self._process
        if process is None:
            return
        if not at_once and self.backend is not None:
            with suppress(BrokenPipeError):
                await process.stdin.close()
            with anyio.move_on_after(_END_SECONDS):
                while not (self._clean or self._over or process.done()):
                    await self._changed.wait()
                while self._over and not process.done():
                    await self._changed.wait()  # by itself, so that it says what it used
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
        """How the process in the sandbox ended; None where the infrastructure failed."""
        assert self._process is not None
        try:
            return await self._process
        except SandboxError as error:
            self.failure = self.failure or _explained(error)
            return None

    async def _sweep(self) -> None:
        # Isolated, for a file of the code's may be named as one of the modules.
        await self._call([self._options.python, "-I", "-c", _source("ends"), self._mark])

    async def _confirm(self) -> None:
        """See whether it ended alone: a sandbox that ends takes its kernels along, one by one."""
        await self._call(["true"])

    async def _call(self, argv: list[str]) -> None:
        try:
            options = self._options
            await self._sandbox.exec(
                argv, env=options.env, user=options.user, timeout=_CALL_SECONDS
            )
        except (CommandStartError, CommandTimeoutError):
            pass  # of the sandbox's own making
        except SandboxError as error:
            if not self._stopped:
                self.failure = self.failure or error

    async def _write(self, data: bytes) -> None:
        assert self._process is not None
        with suppress(BrokenPipeError):  # else it has ended, which will be seen
            await self._process.stdin.write(data)

    async def _listen(self, process: Process) -> None:
        rest, most = bytearray(), 16 * self._options.output_limit + (1 << 20)
        while (chunk := await process.stdout._next()) is not None:
            rest += chunk
            if b"\n" in chunk:
                *lines, rest = rest.split(b"\n")
                for line in lines:
                    if (said := _said.message(bytes(line), self._token)) is not None:
                        self._heard(said)
            elif len(rest) > most:
                rest.clear()  # no line of the holder's is as long
        await self._result()
        self.ended = True
        self._notify()

    # Any: JSON that the sandbox wrote; what is used of it is checked.
    def _heard(self, said: dict[str, Any]) -> None:
        self._outputs.add(said.get("items"))
        match said.get("say"):
            case "ready":
                self.backend = str(said.get("backend"))
            case "done" if said.get("number") == self._number:
                self._done = said
            case "over":
                self._over, self._clean = said, said.get("clean") is True
            case "ended":
                self._clean = True
            case "failed":
                self._failed, self._clean = str(said.get("why")), True
        self._notify()

    def _notify(self) -> None:
        self._changed.set()
        self._changed = anyio.Event()


def _ended(said: dict[str, Any], result: ProcessResult) -> tuple[Ending, str]:
    """How the kernel ended, which its holder saw."""
    status = said.get("status")
    if not isinstance(status, int) or status >= 0:
        return Ending.EXITED, f"the kernel ended with status {status}"
    if status == -9 and result.usage.oom_kills:
        return Ending.OUT_OF_MEMORY, "the kernel ran out of the sandbox's memory and was killed"
    why = f": {said['why']}" if said.get("why") else ""
    return Ending.SIGNAL, f"the kernel was killed by signal {-status}{why}"


def _broken(result: ProcessResult) -> tuple[Ending, str]:
    """How what held the kernel ended, which only something in the sandbox can have brought about."""
    if result.ending is Ending.OUT_OF_MEMORY:
        return Ending.OUT_OF_MEMORY, "what holds the kernel ran out of the sandbox's memory"
    ending = result.ending or (Ending.SIGNAL if result.returncode > 128 else Ending.EXITED)
    return ending, f"what holds the kernel in the sandbox ended with status {result.returncode}"


def _explained(error: SandboxError) -> SandboxError:
    if not isinstance(error, CommandStartError) or error.errno != errno.ENOENT:
        return error
    return CommandStartError(
        f"{error}: a kernel needs a Python in the image; use an image that has one, or name it with "
        "python=",
        errno=error.errno,
        provider=error.provider,
        sandbox_id=error.sandbox_id,
    )

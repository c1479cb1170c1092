"""The Python process in the sandbox, as its user sees it: requests, answers, and its end."""

import asyncio
import json
import secrets
from importlib import resources
from typing import Any

import anyio

from sandboxkit import Ending, Sandbox, SandboxStartError
from sandboxkit.integrations.smolagents._log import Log

_PACKAGE = "sandboxkit.integrations.smolagents"
_START = "__file__ = 'agent'; exec(compile({source!r}, __file__, 'exec')); main()"
_MOST_REPLY = 64 << 20
_MOST_REPLIES = 100
_GRACE_SECONDS = 5.0
_START_SECONDS = 60.0
_LOG_SECONDS = 5.0

Reply = dict[str, Any]  # Any: JSON that the sandbox wrote; what is used of it is checked


class KernelEndedError(Exception):
    """The process is no more, by what ran in it; the message says how it ended."""


class Kernel:
    """One Python process. Everything here runs on sandboxkit's own loop."""

    def __init__(self, sandbox: Sandbox, python: str, log_limit: int) -> None:
        source = resources.files(_PACKAGE).joinpath("_in_sandbox.py").read_text()
        argv = [python, "-u", "-c", _START.format(source=source)]
        self._process = sandbox.exec(argv, stdin=True, output_limit=log_limit)
        self._log = Log(log_limit)
        self._replies: asyncio.Queue[Reply | None] = asyncio.Queue()
        self._reading = [
            asyncio.create_task(self._read_replies()),
            asyncio.create_task(self._read_log()),
        ]

    def printed(self) -> str:
        """What the last request's code has printed."""
        return self._log.text()

    def kill(self) -> None:
        """End it, with all that it started."""
        self._process.kill()

    async def begin(self) -> None:
        """Wait until it answers. Raises SandboxStartError, and what starting the command raises."""
        try:
            await self.ask("lacking", _START_SECONDS, modules=[])
        except KernelEndedError as error:
            raise SandboxStartError(
                f"{self._process.argv[0]} is no Python that can be used: {error} {self.printed()}"
            ) from None

    async def ask(self, do: str, seconds: float, **fields: object) -> Reply:
        """Have it do something within `seconds`, which it watches itself.

        Raises KernelEndedError where the process has ended or had to be ended, and sandboxkit's
        own errors where that was not its doing.
        """
        mark = f"\0{secrets.token_hex(16)}\0"
        self._log.expect(mark)
        request = {"do": do, "seconds": seconds, "mark": mark, "with": fields}
        reply: Reply | None = None
        with anyio.move_on_after(seconds + _GRACE_SECONDS) as late:
            try:
                await self._process.stdin.write(json.dumps(request) + "\n")
            except BrokenPipeError:
                pass  # it has ended, which its replies say as well
            while (reply := await self._replies.get()) is not None:
                if reply.get("mark") == mark:
                    break
        if late.cancelled_caught:
            self.kill()
            raise KernelEndedError(
                f"The code ran longer than {seconds:g} seconds and did not stop when it was told "
                "to, so its Python process was ended."
            )
        if reply is None:
            raise KernelEndedError(await self._last_words())
        with anyio.move_on_after(_LOG_SECONDS):  # the code may have closed what leads there
            await self._log.marked.wait()
        return reply

    async def _last_words(self) -> str:
        result = await self._process
        await asyncio.wait(self._reading, timeout=_LOG_SECONDS)
        if result.ending is Ending.OUT_OF_MEMORY:
            return "The Python process ran out of the sandbox's memory."
        return f"The Python process ended with status {result.returncode}."

    async def _read_log(self) -> None:
        async for chunk in self._process.stderr.bytes():
            self._log.feed(chunk)

    async def _read_replies(self) -> None:
        try:
            data = bytearray()
            async for chunk in self._process.stdout.bytes():
                data += chunk
                if b"\n" in chunk:
                    *lines, data = data.split(b"\n")
                    for line in lines:
                        self._replies.put_nowait(_parsed(line))
                if len(data) > _MOST_REPLY or self._replies.qsize() > _MOST_REPLIES:
                    break
        except (ValueError, RecursionError):
            pass  # the code has written there itself, which ends the process below
        finally:
            self._process.kill()
            self._replies.put_nowait(None)


def _parsed(line: bytearray) -> Reply:
    reply = json.loads(line)
    if not isinstance(reply, dict):
        raise ValueError("no reply")
    return reply

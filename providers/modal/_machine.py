"""The way into one sandbox: the SDK's handle of it, kept lines, and our own scripts."""

import modal
import modal.stream_type

from sandboxkit.errors import ProviderUnavailableError, SandboxError
from sandboxkit.providers._hosted import scripts
from sandboxkit.providers._hosted.command import kill_argv
from sandboxkit.providers._hosted.kept import orders
from sandboxkit.providers._hosted.kept.lines import Line, Lines
from sandboxkit.providers._hosted.killing import make_sure
from sandboxkit.providers.modal._account import Account
from sandboxkit.providers.modal._line import ModalLine
from sandboxkit.types import PtySize

__all__ = ["Machine"]

_LAST_TRY_SECONDS = 1.0
_HEARS_WITHIN = 2.0
"""Seconds that a kept shell may take to answer, before a new one is used."""
_OUTPUT_WINDOW = 128, 65536
"""Pieces of output, and their size, before a word of ours, which costs a call."""


class Machine:
    """A sandbox that was seen running."""

    provider = "modal"

    def __init__(self, account: Account, handle: modal.Sandbox) -> None:
        self.account, self.handle = account, handle
        self.id: str = handle.object_id
        self.timeout = account.timeout
        # Each holds two streams of a connection, whose number is bounded (100 by gRPC servers' habit).
        self.lines = Lines(min(_HEARS_WITHIN, account.timeout / 4), briefly=0.0)

    async def open(self, mark: str, pty: PtySize | None) -> Line:
        """See `kept.Host`; there are no terminals here."""
        process = await self.account.call(
            lambda: self.handle.exec.aio(
                "sh", "-c", orders.serve(*_OUTPUT_WINDOW, apart=True), text=False
            ),
            what="run a command",
            sandbox_id=self.id,
        )
        return ModalLine(self.account, self.id, process)

    async def enter(self, line: Line, mark: str) -> bytes:
        """See `kept.Host`: our shell is there already."""
        return b""

    async def resize(self, mark: str, size: PtySize) -> None:
        """See `kept.Host`."""
        argv = ("sh", "-c", scripts.RESIZE, "sh", mark[:16], mark[16:])
        await self._run_script((*argv, str(size.rows), str(size.cols)), "resize a terminal")

    async def kill(self, mark: str, reason: BaseException) -> None:
        """See `kept.Host`."""
        broken = isinstance(reason, SandboxError)  # then this way is most likely broken, too
        seconds = _LAST_TRY_SECONDS if broken else None
        kill = self._run_script(kill_argv(mark), "kill a command", seconds=seconds)
        await make_sure(kill, reason)

    async def _run_script(
        self, argv: tuple[str, ...], what: str, *, seconds: float | None = None
    ) -> None:
        async def start_and_wait() -> int:
            process = await self.handle.exec.aio(
                *argv,
                text=False,
                stdout=modal.stream_type.StreamType.DEVNULL,
                stderr=modal.stream_type.StreamType.DEVNULL,
            )
            return await process.wait.aio()

        status = await self.account.call(
            start_and_wait, what=what, sandbox_id=self.id, seconds=seconds
        )
        if status:
            raise ProviderUnavailableError(
                f"Modal could not {what}: the sandbox's shell ended with status {status}",
                provider="modal",
                sandbox_id=self.id,
            )

"""Opens terminals in a sandbox, one for each program, through Daytona's toolbox API."""

import asyncio
import base64
import json
import secrets
from urllib.parse import urlencode

import aiohttp
import anyio

from sandboxkit.errors import SandboxError, SandboxNotFoundError, SandboxStartError
from sandboxkit.providers._hosted.ambiguous import LAST_LOOK, AmbiguousError
from sandboxkit.providers.daytona._account import DaytonaAccount
from sandboxkit.providers.daytona._stream import Socket, TerminalStream

# attrs generates the class's constructor, which pyright does not see.
_CLOSE_SOON = aiohttp.ClientWSTimeout(ws_close=1.0)  # pyright: ignore[reportCallIssue]
_EXITS = "X-Daytona-Pty-Exit-Control"
_ENVS = "X-Daytona-Pty-Envs~"
_NO_HOME = "/proc"
"""The HOME of login shells: nobody can create a profile file there, not even root."""
_UNSURE = (AmbiguousError, SandboxStartError)
"""Errors after which the terminal may exist."""
_LARGEST_MESSAGE = 1 << 20
_PAUSES = (0.1, 0.2, 0.4, 0.0)
"""Seconds to wait after each attempt to remove a terminal that may not exist yet."""


class DaytonaTerminals:
    """Opens a sandbox's terminals."""

    def __init__(self, account: DaytonaAccount, sandbox_id: str, proxy: str) -> None:
        self._account, self._sandbox_id = account, sandbox_id
        self._url = f"{proxy.rstrip('/')}/{sandbox_id}"

    async def run(self, argv: tuple[str, ...]) -> TerminalStream:
        """Run a program on a new terminal, which is removed if that fails or is cancelled.

        Raises what `DaytonaAccount.call` and `TerminalStream.open` raise.
        """
        name = f"sandboxkit-{secrets.token_hex(8)}"
        try:
            return await TerminalStream.open(
                self._sandbox_id, self._connected(name), argv, patience=self._account.silence
            )
        except BaseException as error:
            if not isinstance(error, SandboxError) or isinstance(error, _UNSURE):
                await self._remove(name)
            raise

    async def _connected(self, name: str) -> Socket:
        """Open a new terminal. When cancelled, first wait up to 2 s for it: a terminal can be removed
        only once it exists."""
        making = asyncio.create_task(self._connect(name))
        try:
            return await asyncio.shield(making)
        except asyncio.CancelledError:
            with anyio.CancelScope(shield=True):
                await asyncio.wait([making], timeout=LAST_LOOK)
                making.cancel()
                await asyncio.wait([making])
                if not making.cancelled() and making.exception() is None:
                    await making.result().close()
            raise

    async def _connect(self, name: str) -> Socket:
        envs = base64.urlsafe_b64encode(json.dumps({"HOME": _NO_HOME}).encode()).decode()
        query = {"id": name, "cols": 80, "rows": 24, "cwd": "/"}
        url = f"{self._url.replace('http', 'ws', 1)}/process/pty/create-connect?{urlencode(query)}"
        connecting = self._account.http().ws_connect(
            url,
            headers=self._account.headers(),
            protocols=(_EXITS, _ENVS + envs.rstrip("=")),
            timeout=_CLOSE_SOON,
            max_msg_size=_LARGEST_MESSAGE,
        )
        return await self._account.call(
            connecting, what="run a program", sandbox_id=self._sandbox_id
        )

    async def _remove(self, name: str) -> None:
        """Remove a terminal on which no program runs yet, and end its processes.

        A missing terminal is looked for again, because an abandoned call may create it late.
        """
        with anyio.move_on_after(LAST_LOOK, shield=True):
            for pause in _PAUSES:
                try:
                    await self._account.call(
                        self._account.toolbox(self._url).delete_pty_session(name),
                        what="remove a terminal",
                        sandbox_id=self._sandbox_id,
                    )
                except SandboxNotFoundError:
                    await anyio.sleep(pause)
                except SandboxError:
                    return  # Daytona cannot be reached; the terminal ends with its sandbox
                else:
                    return

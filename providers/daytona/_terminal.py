"""New terminals in a sandbox, each for one program: a call of Daytona's toolbox."""

import asyncio
import base64
import json
import secrets
from urllib.parse import urlencode

import aiohttp
import anyio

from sandboxkit.errors import SandboxError, SandboxNotFoundError, SandboxStartError
from sandboxkit.providers._hosted.deadline import LAST_LOOK
from sandboxkit.providers._hosted.unclear import UnclearError
from sandboxkit.providers.daytona._account import Account
from sandboxkit.providers.daytona._stream import Socket, TerminalStream

__all__ = ["Terminals"]

# The class is made by attrs, whose constructor pyright does not see.
_CLOSE_SOON = aiohttp.ClientWSTimeout(ws_close=1.0)  # pyright: ignore[reportCallIssue]
_EXITS = "X-Daytona-Pty-Exit-Control"
_ENVS = "X-Daytona-Pty-Envs~"
_NO_HOME = "/proc"
"""The home of login shells, in which nobody can put a profile for them; root cannot, either."""
_UNSURE = (UnclearError, SandboxStartError)
"""After which there may be a terminal."""
_LARGEST_MESSAGE = 1 << 20
_PAUSES = (0.1, 0.2, 0.4, 0.0)
"""Seconds after each look for a terminal that may not be there yet."""


class Terminals:
    """Where a sandbox's terminals are made."""

    def __init__(self, account: Account, sandbox_id: str, proxy: str) -> None:
        self._account, self._sandbox_id = account, sandbox_id
        self._url = f"{proxy.rstrip('/')}/{sandbox_id}"

    async def run(self, argv: tuple[str, ...]) -> TerminalStream:
        """Run a program on a terminal; where that fails or is cancelled, none is left.

        Raised: what `Account.call` and `TerminalStream.open` raise.
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
        """A new terminal; where that is cancelled it is first waited for, a moment: what has not
        been made yet cannot be removed."""
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
        """End a terminal on which no program runs yet, with all that runs on it.

        One whose making was given up may be made a moment later.
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
                    return  # it cannot be reached: it ends with its sandbox
                else:
                    return

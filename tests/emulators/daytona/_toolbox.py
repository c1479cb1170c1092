"""The toolbox in each sandbox, which behaves like the real daemon.

A terminal runs a login shell that outlives its connection. A client that is
256 messages behind, or sends more than 64 KiB at once, is disconnected. The last output before the
shell's end is lost if it was not sent yet. A write to a client that does not read is given up after 10 s.
"""

import asyncio
import base64
import contextlib
import json
import urllib.parse
from collections.abc import AsyncIterator, Iterable
from pathlib import Path

from daytona_api_client_async import SandboxState

from tests.emulators._engine import MachineEnded, Process
from tests.emulators._serving import RefusedError, respond
from tests.emulators.daytona._boxes import Answer, Box, Boxes, Violation, check_key, refusal
from tests.faults.asgi import Message, Receive, Send

_EXITS = "X-Daytona-Pty-Exit-Control"
_ENVS = "X-Daytona-Pty-Envs~"
_QUEUE = 256
_LARGEST_MESSAGE = 64 * 1024
_WRITE_SECONDS = 10
_NAME = "EMULATED_PTY"
"""The environment variable that identifies the processes of a terminal."""
_PROFILE = 'printf "%s\\n" "$1" >/etc/profile'
_KILL_TREE = Path(__file__).with_name("kill_tree.txt").read_text()
"""A program that kills the children of the first process with a variable, as the daemon does."""


class Toolbox:
    """An ASGI application under /toolbox/{sandbox}."""

    def __init__(self, boxes: Boxes, violation: Violation) -> None:
        self._boxes, self._violation = boxes, violation

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        try:
            box, path = self._box(scope)
            status, content = await self._route(box, scope["method"], path)
        except RefusedError as error:
            status, content = error.status, refusal(error, scope["path"])
        except MachineEnded:
            gone = RefusedError(502, "sandbox is not reachable")
            status, content = 502, refusal(gone, scope["path"])
        await respond(send, status, content)

    async def websocket(self, scope: Message, receive: Receive, send: Send) -> None:
        await receive()
        try:
            box, path = self._box(scope)
            if path != ["process", "pty", "create-connect"]:
                self._violation(f"unknown terminal {scope['path']}")
                raise RefusedError(404, "not found")
            query = dict(urllib.parse.parse_qsl(scope["query_string"].decode()))
            if unknown := query.keys() - {"id", "cols", "rows", "cwd"}:
                self._violation(f"a terminal has no {sorted(unknown)}")
            name, pty = await self._open(box, query, _envs(scope.get("subprotocols", ())))
        except (RefusedError, MachineEnded) as error:
            status = error.status if isinstance(error, RefusedError) else 502
            start = {"status": status, "headers": [(b"content-length", b"0")]}
            await send({"type": "websocket.http.response.start", **start})
            await send({"type": "websocket.http.response.body", "body": b""})
            return
        offered = _EXITS in scope.get("subprotocols", ())
        await send({"type": "websocket.accept", "subprotocol": _EXITS if offered else None})
        await _control(send, status="connected")
        ending = asyncio.create_task(self._end(box, name, pty))
        streams = (self._outputs(pty, send), _inputs(pty, receive, send))
        work = [asyncio.create_task(each) for each in streams]
        await asyncio.wait([*work, ending], return_when=asyncio.FIRST_COMPLETED)
        for task in work:
            task.cancel()
        await asyncio.gather(*work, return_exceptions=True)
        if ending.done():
            await _close(send, ending.result(), offered)
        else:
            self._boxes.spawn(asyncio.wait([ending]))
            self._boxes.spawn(_drain(pty))

    def _box(self, scope: Message) -> tuple[Box, list[str]]:
        check_key(scope)
        _, sandbox_id, *path = scope["path"].strip("/").split("/")
        box = self._boxes.alive.get(sandbox_id)
        if box is None:
            # The real toolbox cannot check the key for a sandbox that no longer exists.
            raise RefusedError(401, "unauthorized: bearer token is invalid")
        if box.machine is None or box.state is not SandboxState.STARTED:
            raise RefusedError(400, "Sandbox is not started")
        return box, path

    async def _route(self, box: Box, method: str, path: list[str]) -> Answer:
        match method, path:
            case "DELETE", ["process", "pty", name]:
                pty = box.ptys.get(name)
                if pty is None:
                    raise RefusedError(404, "PTY session not found")
                await _remove(box, name, pty)
                return 200, {"message": "PTY session deleted"}
        self._violation(f"unknown request {method} {path}")
        raise RefusedError(404, "not found")

    async def _open(
        self, box: Box, query: dict[str, str], envs: dict[str, str]
    ) -> tuple[str, Process]:
        name, rows, cols = query["id"], int(query.get("rows", 24)), int(query.get("cols", 80))
        if name in box.ptys:
            raise RefusedError(409, f"PTY session with ID '{name}' already exists")
        if not (1 <= rows <= 1000 and 1 <= cols <= 1000):
            raise RefusedError(400, "invalid size")
        assert box.machine is not None
        profile = await box.machine.spawn(
            ("sh", "-c", _PROFILE, "sh", self._boxes.settings.profile), env={}
        )
        await profile.wait()
        pty = box.ptys[name] = await box.machine.spawn(
            ("bash", "-i", "-l"),
            env={"TERM": "xterm-256color", "SHELL": "/bin/bash", _NAME: name, **envs},
            cwd=query.get("cwd", "/"),
            pty=(rows, cols),
        )
        return name, pty

    async def _outputs(self, pty: Process, send: Send) -> None:
        """Send output until the reader is disconnected; unsent output is then lost."""
        queue: asyncio.Queue[bytes] = asyncio.Queue(_QUEUE)

        async def forward() -> None:
            while True:
                await send({"type": "websocket.send", "bytes": await queue.get()})

        forwarding = asyncio.create_task(forward())
        try:
            async for chunk in _output(pty):
                settings = self._boxes.settings
                if queue.full() or settings.slow:
                    settings.slow = max(0, settings.slow - 1)
                    break
                queue.put_nowait(chunk)
            else:
                await asyncio.Event().wait()  # the terminal's end is reported elsewhere
        finally:
            forwarding.cancel()
        closing = {"type": "websocket.close", "code": 1008, "reason": "slow consumer"}
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_WRITE_SECONDS):
                await send(closing)

    async def _end(self, box: Box, name: str, pty: Process) -> int:
        try:
            code = await pty.wait()
            return code if code >= 0 else -1
        except MachineEnded:
            if box.silent:
                await asyncio.Event().wait()
            return 137
        finally:
            del box.ptys[name]


def _envs(subprotocols: Iterable[str]) -> dict[str, str]:
    token = next((each for each in subprotocols if each.startswith(_ENVS)), None)
    if token is None:
        return {}
    encoded = token.removeprefix(_ENVS)
    envs: dict[str, str] = json.loads(base64.urlsafe_b64decode(encoded + "=" * (-len(encoded) % 4)))
    return envs


async def _remove(box: Box, name: str, pty: Process) -> None:
    assert box.machine is not None
    argv = ("python3", "-c", _KILL_TREE, f"{_NAME}={name}")
    await (await box.machine.spawn(argv, env={})).wait()
    await pty.kill()


async def _inputs(pty: Process, receive: Receive, send: Send) -> None:
    while True:
        message = await receive()
        if message["type"] == "websocket.disconnect":
            return
        data = message.get("bytes") or (message.get("text") or "").encode()
        if len(data) > _LARGEST_MESSAGE:
            await send({"type": "websocket.close", "code": 1009, "reason": ""})
            return
        with contextlib.suppress(BrokenPipeError, MachineEnded):
            await pty.write(data)


async def _output(pty: Process) -> AsyncIterator[bytes]:
    with contextlib.suppress(MachineEnded, BrokenPipeError):
        async for chunk in pty.stdout:
            yield chunk


async def _drain(pty: Process) -> None:
    async for _ in _output(pty):
        pass  # no client is connected: the output is lost


async def _control(send: Send, **output: object) -> None:
    await send({"type": "websocket.send", "text": json.dumps({"type": "control", **output})})


async def _close(send: Send, code: int, offered: bool) -> None:
    output = {"exitCode": code} if code == 0 else {"exitCode": code, "exitReason": "non-zero exit"}
    closing = {"code": 1000 if code == 0 else 1011, "reason": json.dumps(output)}
    with contextlib.suppress(Exception):  # the client may have disconnected first
        if offered:
            await _control(send, status="exited", **output)
        await send({"type": "websocket.close", **closing})

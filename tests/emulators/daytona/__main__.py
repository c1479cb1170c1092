"""Serves the emulator on a free port, prints its address, and ends with its standard input."""

import asyncio
import json
import socket
import sys
import traceback
from dataclasses import fields
from typing import Any

import uvicorn

from tests.emulators._faults import Faults, Message, Receive, Rule, Send
from tests.emulators.daytona._answers import body_of
from tests.emulators.daytona._boxes import Boxes
from tests.emulators.daytona._control import Control
from tests.emulators.daytona._toolbox import Toolbox


class Socket:
    """A WebSocket's sending side; a plain answer refuses the handshake."""

    def __init__(self, send: Any) -> None:
        self._send = send
        self.transport = send.__self__.transport

    async def send(self, message: Message) -> None:
        if message["type"].startswith("http."):
            message = {**message, "type": f"websocket.{message['type']}"}
        await self._send(message)


class Emulator:
    """The ASGI application: Daytona under faults, and beside it what the tests ask."""

    def __init__(self) -> None:
        self.violations: list[str] = []
        self.boxes = Boxes()
        self._control = Control(self.boxes, self.violations.append)
        self._toolbox = Toolbox(self.boxes, self.violations.append)
        self._faults = Faults(self._daytona, self.boxes.kill_all)
        self._sockets: list[Any] = []

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["path"].startswith("/_emulator/"):
            await self._tests(scope, receive, send)
        elif scope["type"] == "websocket":
            side = Socket(send)
            self._sockets.append(side)
            await self._faults({**scope, "method": "WS"}, receive, side.send)
            self._sockets.remove(side)
        else:
            await self._faults(scope, receive, send)

    async def _daytona(self, scope: Message, receive: Receive, send: Send) -> None:
        try:
            if scope["type"] == "websocket":
                await self._toolbox.websocket(scope, receive, send)
            elif scope["path"].startswith("/toolbox/"):
                await self._toolbox(scope, receive, send)
            else:
                await self._control(scope, receive, send)
        except (AssertionError, ValueError, LookupError):
            self.violations.append(traceback.format_exc())
            raise

    async def _tests(self, scope: Message, receive: Receive, send: Send) -> None:
        body = await body_of(receive)
        answer: Any = None
        match scope["path"]:
            case "/_emulator/fault":
                asked = json.loads(body)
                assert asked.keys() <= {field.name for field in fields(Rule)}
                self._faults.plan(Rule(**asked))
            case "/_emulator/clear":
                self._faults.clear()
                self.boxes.minute = 60.0
            case "/_emulator/state":
                answer = {
                    "violations": self.violations,
                    "alive": list(self.boxes.alive),
                    "requests": self._faults.requests,
                }
            case "/_emulator/kill":
                await self.boxes.kill_all()
            case "/_emulator/break":
                for side in self._sockets:
                    side.transport.abort()
            case "/_emulator/minute":
                self.boxes.minute = json.loads(body)
        content = json.dumps(answer).encode()
        headers = [(b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": content})


async def serve() -> None:
    emulator = Emulator()
    # Of TCP by name: only then does asyncio send small pieces at once, as the real servers do.
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP) as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(512)
        config = uvicorn.Config(
            emulator,
            log_level="critical",
            lifespan="off",
            ws="wsproto",
            timeout_graceful_shutdown=1,
        )
        server = uvicorn.Server(config)
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        sys.stdout.write(f"http://127.0.0.1:{listener.getsockname()[1]}\n")
        sys.stdout.flush()
        await asyncio.to_thread(sys.stdin.read)
        await emulator.boxes.aclose()
        server.should_exit = True
        await serving


asyncio.run(serve())

"""Serves the Daytona emulator on a free port, prints its address, and ends when stdin is closed."""

import asyncio
import faulthandler
import json
import os
import sys
import traceback
from dataclasses import fields
from typing import Any

import uvicorn
from daytona_api_client_async import SandboxState

from tests.emulators._faults import Faults, Message, Receive, Rule, Send
from tests.emulators._listening import listening
from tests.emulators.daytona._answers import body_of
from tests.emulators.daytona._boxes import Boxes
from tests.emulators.daytona._control import Control
from tests.emulators.daytona._toolbox import Toolbox

_END_SECONDS = 15.0
"""Seconds after which a process that has not ended dumps its stack and is killed."""


class Socket:
    """The sending side of a WebSocket. A plain HTTP response refuses the handshake."""

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
        self.boxes = Boxes(rooted="rooted" in sys.argv[1:])
        self._control = Control(self.boxes, self.violations.append)
        self._toolbox = Toolbox(self.boxes, self.violations.append)
        self._faults = Faults(self._daytona, self.boxes.kill_all)
        self._sockets: list[Any] = []
        self._cut: bool | None = None
        """Whether the next write is delivered before its connection is aborted; None: no abort."""
        self.config = uvicorn.Config(
            self,
            log_level="critical",
            lifespan="off",
            ws="wsproto",
            timeout_graceful_shutdown=1,
            timeout_keep_alive=75,  # (s) as load balancers have it, longer than the SDK's client
        )

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["path"].startswith("/_emulator/"):
            await self._tests(scope, receive, send)
        elif scope["type"] == "websocket":
            side = Socket(send)
            self._sockets.append(side)
            scope = {**scope, "method": "WS"}
            await self._faults(scope, lambda: self._received(side, receive), side.send)
            self._sockets.remove(side)
        else:
            await self._faults(scope, receive, send)

    async def _received(self, side: Socket, receive: Receive) -> Message:
        message = await receive()
        if message["type"] == "websocket.receive" and self._cut is not None:
            delivered, self._cut = self._cut, None
            side.transport.abort()
            if not delivered:
                return {"type": "websocket.disconnect", "code": 1006}
        return message

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
                self.boxes.cpus = self.boxes.end = None
                self.boxes.gone.clear()
                self.boxes.warm = False
                self.boxes.most_snapshots = 100
                self.boxes.profile = ""
                self._cut = None
                self._toolbox.slow = 0
                self.config.ws_ping_interval = self.config.ws_ping_timeout = 20.0
            case "/_emulator/state":
                answer = {
                    "violations": self.violations,
                    "alive": list(self.boxes.alive),
                    "requests": self._faults.requests,
                    "networks": [
                        [box.asked.domain_allow_list, box.asked.network_allow_list]
                        for box in self.boxes.alive.values()
                    ],
                    "terminals": sum(len(box.ptys) for box in self.boxes.alive.values()),
                }
            case "/_emulator/kill":
                await self.boxes.kill_all()
            case "/_emulator/stop":
                await self.boxes.stop_silently()
            case "/_emulator/break":
                for side in self._sockets:
                    side.transport.abort()
            case "/_emulator/cut":
                self._cut = json.loads(body)
            case "/_emulator/slow":
                self._toolbox.slow = json.loads(body)
            case "/_emulator/pings":
                seconds = json.loads(body)
                self.config.ws_ping_interval = self.config.ws_ping_timeout = seconds
            case "/_emulator/profile":
                self.boxes.profile = json.loads(body)
            case "/_emulator/cpus":
                self.boxes.cpus = json.loads(body)
            case "/_emulator/end":
                state, reply = json.loads(body)
                self.boxes.end = SandboxState(state), reply
            case "/_emulator/most_snapshots":
                self.boxes.most_snapshots = json.loads(body)
            case "/_emulator/lose_snapshot":
                self.boxes.loses_snapshot = True
            case "/_emulator/deactivate":
                self.boxes.inactive = set(self.boxes.made_of)
            case "/_emulator/warm":
                self.boxes.warm = True
            case "/_emulator/minute":
                self.boxes.minute = json.loads(body)
        content = json.dumps(answer).encode()
        headers = [(b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": content})


async def serve() -> None:
    emulator = Emulator()
    with listening() as listener:
        server = uvicorn.Server(emulator.config)
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        sys.stdout.write(f"http://127.0.0.1:{listener.getsockname()[1]}\n")
        sys.stdout.flush()
        await asyncio.to_thread(sys.stdin.read)
        faulthandler.dump_traceback_later(_END_SECONDS, exit=True)
        server.should_exit = server.force_exit = True
        await serving  # does not wait for requests, since one may never end
        await emulator.boxes.aclose()
    os._exit(0)  # does not wait for threads


asyncio.run(serve())

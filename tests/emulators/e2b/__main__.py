"""Serves the emulator on a free port, prints its address, and ends with its standard input."""

import asyncio
import json
import sys
import traceback
from dataclasses import fields
from typing import Any

import uvicorn
from e2b.envd.client_shared import ENVD_JSON_CODEC
from e2b.envd.process.process_connect import ProcessASGIApplication

from tests.emulators._faults import Faults, Message, Receive, Rule, Send
from tests.emulators._listening import listening
from tests.emulators.e2b._boxes import Boxes
from tests.emulators.e2b._control import Control
from tests.emulators.e2b._envd import Envd


class Emulator:
    """The ASGI application: E2B under faults, and beside it what the tests ask."""

    def __init__(self) -> None:
        self.violations: list[str] = []
        self.boxes = Boxes()
        self._control = Control(self.boxes, self.violations.append)
        self._rpc = ProcessASGIApplication(Envd(self.boxes), codecs=[ENVD_JSON_CODEC])
        self._faults = Faults(self._e2b, self.boxes.kill_all)

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        if scope["path"].startswith("/_emulator/"):
            await self._tests(scope, receive, send)
        else:
            await self._faults(scope, receive, send)

    async def _e2b(self, scope: Message, receive: Receive, send: Send) -> None:
        try:
            if not scope["path"].startswith("/process."):
                await self._control(scope, receive, send)
            elif self._known(scope):
                await self._rpc(scope, receive, send)
            else:  # the proxy in front of the daemon answers
                body = json.dumps({"code": 502, "message": "The sandbox was not found"}).encode()
                headers = [(b"content-type", b"application/json")]
                await send({"type": "http.response.start", "status": 502, "headers": headers})
                await send({"type": "http.response.body", "body": body})
        except AssertionError:
            self.violations.append(traceback.format_exc())
            raise

    def _known(self, scope: Message) -> bool:
        headers = dict(scope["headers"])
        return headers.get(b"e2b-sandbox-id", b"").decode() in self.boxes.alive

    async def _tests(self, scope: Message, receive: Receive, send: Send) -> None:
        body = (await receive()).get("body", b"")
        answer: Any = None
        match scope["path"]:
            case "/_emulator/fault":
                asked = json.loads(body)
                assert asked.keys() <= {field.name for field in fields(Rule)}
                self._faults.plan(Rule(**asked))
            case "/_emulator/clear":
                self._faults.clear()
            case "/_emulator/state":
                answer = {
                    "violations": self.violations,
                    "alive": list(self.boxes.alive),
                    "requests": self._faults.requests,
                }
            case "/_emulator/kill":
                await self.boxes.kill_all()
        content = json.dumps(answer).encode()
        headers = [(b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": content})


async def serve() -> None:
    emulator = Emulator()
    with listening() as listener:
        config = uvicorn.Config(
            emulator, log_level="critical", lifespan="off", timeout_graceful_shutdown=1
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

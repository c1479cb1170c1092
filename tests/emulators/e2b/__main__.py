"""Serves the E2B emulator on a free port, prints its address, and ends when stdin is closed."""

import asyncio
import json
import sys
import traceback
from dataclasses import fields
from typing import Any

import uvicorn
from connectrpc.codec import proto_binary_codec
from e2b.envd.client_shared import ENVD_JSON_CODEC
from e2b.envd.filesystem.filesystem_connect import FilesystemASGIApplication
from e2b.envd.process.process_connect import ProcessASGIApplication

from tests.emulators._faults import Faults, Message, Receive, Rule, Send
from tests.emulators._listening import listening
from tests.emulators.e2b._boxes import Boxes
from tests.emulators.e2b._control import Control
from tests.emulators.e2b._envd import Envd
from tests.emulators.e2b._files import Files, FilesOverHttp
from tests.emulators.e2b._proxy import Proxy, plain
from tests.emulators.e2b._shapes import SHAPES


class Emulator:
    """The ASGI application: E2B with planned faults, and the tests' control requests."""

    def __init__(self) -> None:
        self.violations: list[str] = []
        name = next((each for each in sys.argv[1:] if each in SHAPES), "")
        self.boxes = Boxes(SHAPES[name], rooted="rooted" in sys.argv[1:])
        self._control = Control(self.boxes, self.violations.append)
        codecs = [proto_binary_codec(), ENVD_JSON_CODEC]
        self._processes = ProcessASGIApplication(Envd(self.boxes), codecs=codecs)
        self._filesystem = FilesystemASGIApplication(Files(self.boxes), codecs=codecs)
        self._files = FilesOverHttp(self.boxes)
        self._proxy = Proxy(self.boxes, self._envd)
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
            if not scope["path"].startswith(("/process.", "/filesystem.", "/files")):
                await self._control(scope, receive, send)
                return
            await self._proxy(scope, receive, send)
        except AssertionError:
            self.violations.append(traceback.format_exc())
            raise

    async def _envd(self, scope: Message, receive: Receive, send: Send) -> None:
        if self.boxes.shape.is_old and scope["path"].endswith("/CloseStdin"):
            await plain(send, 404, "404 page not found\n")
        elif scope["path"].startswith("/process."):
            await self._processes(scope, receive, send)
        elif scope["path"] == "/files":
            await self._files(scope, receive, send)
        else:
            await self._filesystem(scope, receive, send)

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
                self.boxes.limit, self.boxes.unforkable = 100, ""
                self._proxy.holds_inputs, self._proxy.idle_seconds = False, None
            case "/_emulator/limit":
                self.boxes.limit = json.loads(body)
            case "/_emulator/unforkable":
                self.boxes.unforkable = json.loads(body)
            case "/_emulator/hold":
                self._proxy.holds_inputs = True
            case "/_emulator/idle":
                self._proxy.idle_seconds = json.loads(body)
            case "/_emulator/break":
                self._proxy.break_connections()
            case "/_emulator/state":
                answer = {
                    "violations": self.violations,
                    "alive": list(self.boxes.alive),
                    "requests": self._faults.requests,
                    "networks": [box.network.to_dict() for box in self.boxes.alive.values()],
                    "kept_alive": self.boxes.kept_alive,
                    "programs": [
                        " ".join([running.config.cmd, *running.config.args])
                        for box in self.boxes.alive.values()
                        for running in box.processes.values()
                    ],
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
            emulator,
            log_level="critical",
            lifespan="off",
            timeout_graceful_shutdown=1,
            timeout_keep_alive=75,  # (s) as load balancers have it
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

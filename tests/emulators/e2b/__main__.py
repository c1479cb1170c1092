"""Serves the E2B emulator on a free port, prints its address, and ends when stdin is closed."""

import sys
from typing import Any

from connectrpc.codec import proto_binary_codec
from e2b.envd.client_shared import ENVD_JSON_CODEC
from e2b.envd.process.process_connect import ProcessASGIApplication

from tests.emulators._serving import HttpEmulator, respond, serve
from tests.emulators.e2b._boxes import Boxes, Settings
from tests.emulators.e2b._control import Control
from tests.emulators.e2b._envd import Envd
from tests.emulators.e2b._files import FilesOverHttp
from tests.emulators.e2b._proxy import Proxy
from tests.emulators.e2b._shapes import SHAPES
from tests.faults.asgi import App, Message, Receive, Send


class Emulator(HttpEmulator):
    """E2B, or the server whose shape an option names."""

    def __init__(self) -> None:
        name = next((each for each in sys.argv[1:] if each in SHAPES), "e2b")
        settings = Settings()
        boxes = Boxes(SHAPES[name], settings)
        super().__init__(boxes, settings)
        self._control = Control(boxes, self.violations.append)
        codecs = [proto_binary_codec(), ENVD_JSON_CODEC]
        self._processes = ProcessASGIApplication(Envd(boxes), codecs=codecs)
        self._files = FilesOverHttp(boxes)
        self._proxy = Proxy(boxes, self._envd)

    def app(self, scope: Message) -> App:
        of_daemon = scope["path"].startswith(("/process.", "/files"))
        return self._proxy if of_daemon else self._control

    async def _envd(self, scope: Message, receive: Receive, send: Send) -> None:
        path = scope["path"]
        if not self.boxes.shape.closes_stdin and path.endswith("/CloseStdin"):
            await respond(send, 404, "404 page not found\n")
        elif path == "/files":
            await self._files(scope, receive, send)
        else:
            await self._processes(scope, receive, send)

    async def break_connections(self) -> None:
        self._proxy.break_connections()

    async def state(self) -> dict[str, Any]:
        boxes = self.boxes.alive.values()
        programs = [each.config for box in boxes for each in box.processes.values()]
        return {
            **await super().state(),
            "networks": [box.network.to_dict() for box in boxes],
            "kept_alive": self.boxes.kept_alive,
            "programs": [" ".join([each.cmd, *each.args]) for each in programs],
        }


serve(Emulator)

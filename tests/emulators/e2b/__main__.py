"""Serves the E2B emulator on a free port, prints its address, and ends when stdin is closed."""

import sys
import urllib.parse
from typing import Any

from connectrpc.codec import proto_binary_codec
from e2b.envd.client_shared import ENVD_JSON_CODEC
from e2b.envd.process.process_connect import ProcessASGIApplication

from tests.emulators._serving import HttpEmulator, body_of, respond, serve
from tests.emulators.e2b._boxes import Boxes, Settings
from tests.emulators.e2b._control import Control
from tests.emulators.e2b._envd import Envd
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

    async def _files(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answer the daemon's call that writes a whole file over HTTP: a POST of one file."""
        headers = {name: value.decode() for name, value in scope["headers"]}
        box = self.boxes.alive[headers[b"e2b-sandbox-id"]]
        query = dict(urllib.parse.parse_qsl(scope["query_string"].decode()))
        assert query.keys() <= {"path", "username"}, query
        assert scope["method"] == "POST"
        path, body = query["path"], await body_of(receive)
        boundary, _, rest = body.partition(b"\r\n")
        _, _, rest = rest.partition(b"\r\n\r\n")
        if await box.machine.write(path, rest[: rest.rindex(b"\r\n" + boundary)]):
            await respond(send, 404, {"message": f"path '{path}' does not exist"})
        else:
            written = {"name": path.rpartition("/")[2], "path": path, "type": "file"}
            await respond(send, 200, [written])

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

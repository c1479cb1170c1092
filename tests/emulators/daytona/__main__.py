"""Serves the Daytona emulator on a free port, prints its address, and ends when stdin is closed."""

from typing import Any

from tests.emulators._serving import HttpEmulator, serve
from tests.emulators.daytona._boxes import Boxes, Settings
from tests.emulators.daytona._control import Control
from tests.emulators.daytona._toolbox import Toolbox
from tests.faults.asgi import App, Message, Receive, Send


class Socket:
    """The sending side of a WebSocket. A plain HTTP response refuses the handshake."""

    def __init__(self, send: Any) -> None:
        self._send = send
        self.transport = send.__self__.transport

    async def send(self, message: Message) -> None:
        if message["type"].startswith("http."):
            message = {**message, "type": f"websocket.{message['type']}"}
        await self._send(message)


class Emulator(HttpEmulator):
    wrong = (AssertionError, ValueError, LookupError)

    def __init__(self) -> None:
        settings = Settings()
        boxes = Boxes(settings)
        super().__init__(boxes, settings)
        self._control = Control(boxes, self.violations.append)
        self._toolbox = Toolbox(boxes, self.violations.append)
        self._sockets: list[Socket] = []

    def app(self, scope: Message) -> App:
        if scope["type"] == "websocket":
            return self._toolbox.websocket
        return self._toolbox if scope["path"].startswith("/toolbox/") else self._control

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "websocket":
            await self.faults(scope, receive, send)
            return
        side = Socket(send)
        self._sockets.append(side)
        scope = {**scope, "method": "WS"}
        await self.faults(scope, lambda: self._received(side, receive), side.send)
        self._sockets.remove(side)

    async def _received(self, side: Socket, receive: Receive) -> Message:
        message = await receive()
        if message["type"] == "websocket.receive" and self.settings.cut is not None:
            delivered, self.settings.cut = self.settings.cut, None
            side.transport.abort()
            if not delivered:
                return {"type": "websocket.disconnect", "code": 1006}
        return message

    async def clear(self) -> None:
        await super().clear()
        self.boxes.gone.clear()
        await self.pings(20.0)

    async def pings(self, seconds: float) -> None:
        """Ping new connections every `seconds`, and close those that do not reply within that time."""
        self.config.ws_ping_interval = self.config.ws_ping_timeout = seconds

    async def break_connections(self) -> None:
        for side in self._sockets:
            side.transport.abort()

    async def state(self) -> dict[str, Any]:
        boxes = self.boxes.alive.values()
        lists = [[box.asked.domain_allow_list, box.asked.network_allow_list] for box in boxes]
        terminals = sum(len(box.ptys) for box in boxes)
        return {**await super().state(), "networks": lists, "terminals": terminals}


serve(Emulator)

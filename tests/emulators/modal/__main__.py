"""Serves the Modal emulator on a free port, prints its address, and ends when stdin is closed."""

import asyncio
from typing import Any

from grpclib.server import Server
from modal._utils.grpc_utils import custom_detail_codec

from sandboxkit import Session
from tests.emulators import _serving
from tests.emulators.modal._boxes import Boxes, Settings
from tests.emulators.modal._control import Control
from tests.emulators.modal._router import Router
from tests.emulators.modal._wire import Checked, Wire
from tests.faults.rpc import Faults


class Emulator(_serving.Emulator):
    def __init__(self, session: Session, url: str) -> None:
        settings, faults = Settings(), Faults()
        boxes = Boxes(session, settings)
        faults.end_sandboxes = boxes.kill_all
        self.wire = Wire(faults, settings)
        super().__init__(boxes, settings, faults, self.wire.requests)
        self.violations = self.wire.violations
        self.control = Control(self.wire, boxes, url)

    async def reached_at(self, url: str) -> None:
        """Return this address as that of the workers, for example that of a proxy in front of them."""
        self.control.url = url

    async def break_connections(self) -> None:
        """Abort all connections; the workers know the programs that they carried."""
        self.wire.cut()

    async def forget(self) -> None:
        """Abort all connections and drop the commands, as if a worker's router was restarted."""
        self.boxes.forget_commands()
        self.wire.cut()

    async def state(self) -> dict[str, Any]:
        boxes = list(self.boxes.running())
        found = [box.definition.network_access for box in boxes]
        return {
            **await super().state(),
            "images": [each for each in self.boxes.snapshots if self.boxes.has_image(each)],
            "networks": [[list(each.allowed_domains), list(each.allowed_cidrs)] for each in found],
            "timeouts": {box.id: box.timeout for box in boxes},
        }


async def main() -> None:
    async with Session("local") as session:
        with _serving.listening() as listener:
            url = _serving.url_of(listener)
            emulator = Emulator(session, url)
            wire, boxes = emulator.wire, emulator.boxes
            server = Server(
                [
                    Checked(wire, emulator.control, router=False),
                    Checked(wire, Router(boxes), router=True),
                ],
                status_details_codec=custom_detail_codec,
            )
            await server.start(sock=listener)
            await _serving.obey(url, emulator, wire, wire.faults, boxes)
            wire.faults.clear()
            server.close()
            await boxes.aclose()


asyncio.run(main())

"""`python -m tests.emulators.modal`: runs the emulator, with control requests on its standard streams."""

import asyncio

from grpclib.server import Server
from modal._utils.grpc_utils import custom_detail_codec

from sandboxkit import Session
from tests.emulators._serving import listening, obey, url_of
from tests.emulators.modal._boxes import Boxes
from tests.emulators.modal._control import Control
from tests.emulators.modal._router import Router
from tests.emulators.modal._wire import Checked, Wire
from tests.faults.rpc import Faults


class Emulator:
    """The control requests that tests can send to the emulator."""

    def __init__(self, wire: Wire, boxes: Boxes, control: Control) -> None:
        self._wire, self._boxes, self._control = wire, boxes, control

    async def reached_at(self, url: str) -> None:
        """Return this address as that of the workers, for example that of a proxy in front of them."""
        self._control.url = url

    async def calm(self) -> None:
        """Remove the planned faults, and let the calls that they stall continue."""
        self._wire.faults.clear()
        self._boxes.repeats_writes, self._boxes.linger = False, 0.0

    async def calls(self) -> dict[str, int]:
        """Return the number of times each call was made since the last `calls`."""
        calls = dict(self._wire.calls)
        self._wire.calls.clear()
        return calls

    async def violations(self) -> list[str]:
        """Return the errors in the calls since the last `violations`."""
        violations, self._wire.violations = self._wire.violations, []
        return violations

    async def running(self) -> list[str]:
        """Return the ids of the sandboxes that have not ended."""
        return [box.id for box in self._boxes.running()]

    async def images(self) -> list[str]:
        """The ids of the images that were made of sandboxes, and have neither expired nor been removed."""
        return [each for each in self._boxes.snapshots if self._boxes.has_image(each)]

    async def networks(self) -> list[list[list[str]]]:
        """Return the allowed names and networks of each running sandbox."""
        found = [box.definition.network_access for box in self._boxes.running()]
        return [[list(each.allowed_domains), list(each.allowed_cidrs)] for each in found]

    async def timeout(self, sandbox_id: str) -> int:
        """Return the lifetime of a sandbox in seconds."""
        return self._boxes.find(sandbox_id).timeout

    async def repeat_writes(self) -> None:
        """Until `calm`, write repeated input again, as Modal's own server does."""
        self._boxes.repeats_writes = True

    async def linger(self, seconds: float) -> None:
        """Until `calm`, let ended sandboxes keep running for `seconds`."""
        self._boxes.linger = seconds

    async def forget(self) -> None:
        """Abort all connections and drop the commands, as if a worker's router was restarted."""
        self._boxes.forget_commands()
        self._wire.cut()

    async def doze(self) -> None:
        """Never return."""
        await asyncio.Event().wait()


async def main() -> None:
    async with Session("local") as session:
        wire, boxes = Wire(Faults()), Boxes(session)
        wire.faults.end_sandboxes = boxes.close
        with listening() as listener:
            url = url_of(listener)
            control = Control(wire, boxes, url)
            router = Router(boxes)
            server = Server(
                [Checked(wire, control, router=False), Checked(wire, router, router=True)],
                status_details_codec=custom_detail_codec,
            )
            await server.start(sock=listener)
            await obey(url, Emulator(wire, boxes, control), wire, wire.faults, boxes)
            wire.faults.clear()
            server.close()
            await boxes.aclose()


asyncio.run(main())

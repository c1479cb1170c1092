"""Daytona for the tests: its emulator under the vendor's own environment variables, its words and limits."""

import json
from collections.abc import Mapping
from typing import Any

from sandboxkit.providers._hosted.vendor import VendorProvider
from sandboxkit.providers.daytona import DaytonaProvider
from tests.emulators._answers import Row
from tests.emulators._server import Server
from tests.hosted.vendor import Vendor

KEY = "dtn_0123456789abcdef"


class Daytona(Vendor):
    """Daytona, which starts a sandbox in a few states and reaches it through a terminal."""

    name = "daytona"

    def environment(self, server: Server) -> Mapping[str, str]:
        return {"DAYTONA_API_KEY": KEY, "DAYTONA_API_URL": f"{server.url}/api"}

    def provider(self, timeout: float | None = None, **options: Any) -> VendorProvider[Any, Any]:
        return DaytonaProvider(timeout=timeout or self.timeout, build_timeout=20, **options)

    def fill(self, server: Server, sandboxes: int) -> None:
        server.set(cpus=sandboxes)

    def rows(self) -> list[Row]:
        return [*super().rows(), *(row for _, row in self.ends)]

    @property
    def ends(self) -> list[tuple[Mapping[str, Any], Row]]:
        """The states and fields of sandboxes that are made and do not start, and what each is for us."""
        found: list[tuple[Mapping[str, Any], Row]] = []
        for end in self.end:
            said = f"200, then `{end['state']}` {json.dumps(end['fields'])}"
            found.append((end, Row(("create",), said, self._class(end))))
        return found


emulator = Daytona().running
"""With the option "rooted" its machines have a root and other users, and need Docker."""

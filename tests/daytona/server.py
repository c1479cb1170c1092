"""Daytona for the tests: its emulator under the vendor's own environment variables, its words and limits."""

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, ClassVar
from unittest import mock

from sandboxkit.providers._hosted.baking import BakingProvider
from sandboxkit.providers.daytona import DaytonaProvider
from tests.emulators._answers import Row
from tests.emulators._server import Server
from tests.hosted.vendor import Vendor

KEY = "dtn_0123456789abcdef"


def environment(server: Server) -> dict[str, str]:
    """The vendor's variables that lead its SDK to the emulator."""
    return {"DAYTONA_API_KEY": KEY, "DAYTONA_API_URL": f"{server.url}/api"}


@contextmanager
def emulator(*options: str) -> Iterator[Server]:
    """An emulator in use; at its end it has no sandbox left, and has seen only what Daytona knows.

    "rooted" is an option: its machines have a root and other users, and need Docker.
    """
    with (
        Server("tests.emulators.daytona", *options) as server,
        mock.patch.dict(os.environ, environment(server)),
    ):
        yield server
        assert server.violations == []
        assert server.alive == []


class Daytona(Vendor):
    """Daytona, which starts a sandbox in a few states and reaches it through a terminal."""

    name = "daytona"
    starts = frozenset({"create", "terminal"})
    on_the_way: ClassVar = {
        "POST /api/sandbox": ("status", *Vendor.broken),
        "GET /api/sandbox/": ("status", *Vendor.broken),
        "WS /toolbox": ("status", "reset", "drop", "stall"),
    }
    lost = ("drop", "reset_mid_body", "stall_body")
    throttled: ClassVar = {
        "status": 429,
        "body": {"statusCode": 429, "message": "ThrottlerException: Too Many Requests"},
        "headers": {"Retry-After-sandbox-create": "1"},
    }
    wrong_key = ("DAYTONA_API_KEY", "dtn_wrong")
    nowhere = ("DAYTONA_API_URL", "http://127.0.0.1:9/api")
    variables = (
        ("DAYTONA_API_KEY", "", "DAYTONA_API_KEY"),
        ("DAYTONA_API_KEY", "two words", "DAYTONA_API_KEY"),
        ("DAYTONA_API_KEY", "line\nbreak", "DAYTONA_API_KEY"),
        ("DAYTONA_API_URL", "app.daytona.io", "DAYTONA_API_URL"),
        ("DAYTONA_TARGET", "moon", "Region moon"),
    )
    options = (
        ("pids", 64),
        ("memory_mb", 128),
        ("memory_mb", {"memory_mb": 1500, "image": "python:3.12"}),
        ("cpus", {"cpus": 0.5, "image": "python:3.12"}),
        ("gpu", "A100"),
        ("profile", "strict"),
        ("user", "root"),
        ("lifetime", 31 * 24 * 3600.0),
        ("image", "two words"),
        ("env", {"env": {"NAME": "\udc80"}}),
    )
    images = (
        ("snapshot:nowhere", "snapshot:nowhere"),
        ("registry.test/missing:1", "manifest unknown"),
    )
    lifetimes = ((61.5, 120), (None, 900))
    strict: ClassVar = {"profile": "strict", "image": "python:3.12"}

    def emulator(self, *options: str) -> Server:
        return Server("tests.emulators.daytona", *options)

    def environment(self, server: Server) -> Mapping[str, str]:
        return environment(server)

    def provider(self, timeout: float | None = None, **options: Any) -> BakingProvider[Any]:
        return DaytonaProvider(timeout=timeout or self.timeout, build_timeout=20, **options)

    def fill(self, server: Server, sandboxes: int) -> None:
        server.limit_cpus(sandboxes)

    def rows(self) -> list[Row]:
        return [*super().rows(), *(row for _, row in self.ends)]

    @property
    def ends(self) -> list[tuple[Mapping[str, Any], Row]]:
        """The states and fields of sandboxes that are made and do not start, and what each is for us."""
        return [
            (
                end,
                Row(
                    ("create",),
                    f"200, then `{end['state']}` {json.dumps(end['fields'])}",
                    self._class(end),
                ),
            )
            for end in self._file["end"]
        ]

"""The contract on Daytona: its unmodified clients against the emulator."""

from sandboxkit.testing.conformance import ProviderConformance
from tests.conformance.hooks import HostedHooks
from tests.daytona.server import Daytona


class TestDaytona(HostedHooks, ProviderConformance):
    hosted = Daytona()
    snapshots_lose = frozenset({"holes", "nanoseconds", "xattrs"})
    """Daytona commits a container with Docker."""
    spec = "sandboxkit.providers.daytona:DaytonaProvider"

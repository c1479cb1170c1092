"""The contract on a vendor in one file, which shows what `_hosted.vendor` asks of one."""

from sandboxkit.testing.conformance import ProviderConformance
from tests.conformance.hooks import HostedHooks
from tests.e2b.server import E2B


class TestOwnE2B(HostedHooks, ProviderConformance):
    hosted = E2B()
    spec = "tests.hosted.own_e2b:OwnE2BProvider"

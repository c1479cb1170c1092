"""Daytona passes what each hosted vendor has to pass."""

from tests.daytona.server import Daytona
from tests.hosted.conformance import StrictConformance, VendorConformance


class TestDaytona(VendorConformance):
    vendor = Daytona()
    name = vendor.name


class TestStrict(StrictConformance):
    pass

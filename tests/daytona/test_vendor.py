"""Daytona passes what each hosted vendor has to pass."""

from tests.daytona.server import Daytona
from tests.hosted.conformance import CostsConformance, StrictConformance, VendorConformance


class TestDaytona(VendorConformance, CostsConformance):
    vendor = Daytona()
    name = vendor.name


class TestStrict(StrictConformance):
    pass

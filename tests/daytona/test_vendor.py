"""Daytona passes what each hosted vendor has to pass."""

from typing import ClassVar

from tests.daytona.server import Daytona
from tests.hosted.conformance import CostsConformance, StrictConformance, VendorConformance
from tests.hosted.vendor import Vendor


class TestDaytona(VendorConformance, CostsConformance):
    vendor: ClassVar[Vendor] = Daytona()
    name = vendor.name


class TestStrict(StrictConformance):
    pass

"""E2B passes what each hosted vendor has to pass."""

from tests.e2b.server import E2B
from tests.hosted.conformance import StrictConformance, VendorConformance


class TestE2B(VendorConformance):
    vendor = E2B()
    name = vendor.name


class TestStrict(StrictConformance):
    pass

"""Tools for authors of providers and integrations: a fake provider and conformance tests.

`sandboxkit.testing.conformance.ProviderConformance` needs pytest; `FakeProvider` does not.
"""

from sandboxkit.testing.fake import FakeProvider

__all__ = ["FakeProvider"]

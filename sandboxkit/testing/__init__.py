"""For authors of providers and integrations: a provider without a backend, and the contract's checks.

`sandboxkit.testing.conformance.ProviderConformance` needs pytest; `FakeProvider` does not.
"""

from sandboxkit.testing.fake import FakeProvider

__all__ = ["FakeProvider"]

"""A recorded provider keeps the contract that it kept before."""

import tempfile
from pathlib import Path

from sandboxkit.provider import Provider
from sandboxkit.recording import RecordingProvider
from sandboxkit.testing import FakeProvider
from sandboxkit.testing.conformance import CoreConformance
from tests.conformance.hooks import FakeHooks


class TestRecorded(FakeHooks, CoreConformance):
    """FakeProvider's part of the contract, each call being recorded."""

    @classmethod
    def make_provider(cls) -> Provider:
        file = Path(tempfile.mkdtemp()) / "run.jsonl"
        return RecordingProvider(FakeProvider(), file, owned=True)

    def freeze(self, provider: Provider, sandbox_id: str) -> None:
        super().freeze(_recorded(provider), sandbox_id)

    def thaw(self, provider: Provider, sandbox_id: str) -> None:
        super().thaw(_recorded(provider), sandbox_id)

    def cut(self, provider: Provider, sandbox_id: str) -> None:
        super().cut(_recorded(provider), sandbox_id)


def _recorded(provider: Provider) -> Provider:
    assert isinstance(provider, RecordingProvider)
    return provider._inner

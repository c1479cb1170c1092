"""Adapters close their sessions when the interpreter exits; here each test does."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from sandboxkit.integrations.trainers._scorer import SampleScorer


@pytest.fixture(autouse=True)
def scorers(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[list[SampleScorer]]:
    """Close what the test's adapters opened, and keep torch's folder within the test's."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path / "inductor"))
    made, begin = list[SampleScorer](), SampleScorer.__init__

    def recorded(self: SampleScorer, *args: Any, **options: Any) -> None:
        begin(self, *args, **options)
        made.append(self)

    monkeypatch.setattr(SampleScorer, "__init__", recorded)
    yield made
    for scorer in made:
        scorer.close()

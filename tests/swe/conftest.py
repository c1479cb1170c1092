"""Sessions on the providers that this machine has, and nothing left behind."""

from collections.abc import Iterator

import pytest

from sandboxkit import Session
from sandboxkit.testing.fake import FakeProvider


@pytest.fixture
def session() -> Iterator[Session]:
    """Folders of this machine: enough for the tools, whose code has no part in isolation."""
    with Session(FakeProvider()) as session:
        yield session

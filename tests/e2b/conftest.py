"""The fixtures that all hosted vendors have, for E2B."""

import pytest

from tests.e2b.server import E2B
from tests.hosted.fixtures import *  # noqa: F403 - pytest finds fixtures in here


@pytest.fixture(scope="session")
def vendor() -> E2B:
    return E2B()

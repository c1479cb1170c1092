"""The fixtures that all hosted vendors have, for Modal."""

import pytest

from tests.hosted.fixtures import *  # noqa: F403 - pytest finds fixtures in here
from tests.modal.server import Modal


@pytest.fixture(scope="session")
def vendor() -> Modal:
    return Modal()

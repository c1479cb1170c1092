"""The fixtures that all hosted vendors have, for Daytona."""

import pytest

from tests.daytona.server import Daytona
from tests.hosted.fixtures import *  # noqa: F403 - pytest finds fixtures in here


@pytest.fixture(scope="session")
def vendor() -> Daytona:
    return Daytona()

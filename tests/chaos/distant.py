"""The chaos client as it is where Docker's daemon is on another machine: no short way past it."""

import sys

import pytest

from sandboxkit.providers.docker import _direct
from tests.chaos import client


async def no_way(pid: int, container_id: str, address: str) -> None:
    """Instead of `_direct.connect`: what it says of a daemon elsewhere."""
    return None


if __name__ == "__main__":
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_direct, "connect", no_way)
        status = client.main()
    sys.exit(status)

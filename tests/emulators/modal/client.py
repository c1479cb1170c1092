"""Modal's emulator under the variables that lead the SDK to it."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.emulators._server import Controlled, ended, started


class ModalEmulator(Controlled):
    """A running emulator."""

    def running(self) -> list[str]:
        """Return the ids of the sandboxes that have not ended."""
        return list(self.ask("running"))


@contextmanager
def modal_emulator() -> Iterator[ModalEmulator]:
    """Run an emulator, with the SDK's environment variables pointing to it.

    Fails the test at the end for invalid calls and for sandboxes that are left over.
    """
    process = started("tests.emulators.modal")
    try:
        with pytest.MonkeyPatch.context() as patch:
            emulator = ModalEmulator(process)
            patch.setenv("MODAL_SERVER_URL", emulator.url)
            patch.setenv("MODAL_TOKEN_ID", "ak-emulator")
            patch.setenv("MODAL_TOKEN_SECRET", "as-emulator")
            yield emulator
            emulator.ask("calm")
            if wrong := emulator.ask("violations"):
                pytest.fail(f"the emulator received invalid calls: {wrong}")
            if left := emulator.running():
                pytest.fail(f"sandboxes were left over: {left}")
    finally:
        ended(process)

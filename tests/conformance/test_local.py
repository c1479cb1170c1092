"""The local provider shows every behaviour."""

import shutil

import pytest

from sandboxkit import Session
from sandboxkit.testing.conformance import ProviderConformance
from sandboxkit.testing.conformance.silence import SilenceConformance
from tests.components import require_root
from tests.conformance.hooks import LocalHooks
from tests.local_here import require_local


class _Local(LocalHooks):
    spec = "sandboxkit.providers.local:LocalProvider"

    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def here(cls) -> None:
        """Skip the contract where no local sandbox can start."""
        require_local()


NEED_ROOT = ("test_every_file_can_be_changed_in_a_fork", "test_files_are_kept_as_they_were")
"""Their files have modes that only root may read, or who has subordinate ids."""


class TestLocal(_Local, ProviderConformance):
    silence_bound = 18.0
    """Beside other tests."""

    @pytest.fixture(autouse=True)
    def readable(self, request: pytest.FixtureRequest) -> None:
        """Skip what a user's snapshot refuses."""
        if request.function.__name__ in NEED_ROOT and not shutil.which("newuidmap"):
            require_root("a snapshot has files that the user may not read")


class TestAlone(_Local):
    @pytest.mark.alone
    def test_silence_is_known_as_soon_as_is_documented(self, session: Session) -> None:
        check = SilenceConformance()
        check.freeze, check.thaw = self.freeze, self.thaw  # type: ignore[method-assign]  # the rest is alike
        check.test_silence_is_not_a_timeout(session)

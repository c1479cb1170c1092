"""The local provider shows every behaviour with Landlock, or refuses by name what Landlock cannot do."""

from dataclasses import replace
from unittest.mock import patch

import pytest

from sandboxkit import ConfigurationError, Egress, Sandbox, Session
from sandboxkit.provider import FirstCommand
from sandboxkit.providers.local import LocalProvider, _landlock, _layout
from sandboxkit.providers.local._provider import LocalBox
from sandboxkit.providers.local._start_errors import landlock_lacks
from sandboxkit.testing.conformance import ProviderConformance
from sandboxkit.testing.conformance._base import DEADLINE
from sandboxkit.testing.conformance.isolation import python
from sandboxkit.types import SandboxSpec, SnapshotKind
from tests.components import lack, needs_root, reason
from tests.conformance.conftest import CHOSEN
from tests.conformance.hooks import LocalHooks


class LandlockProvider(LocalProvider):
    """Local sandboxes with Landlock, whatever the session asks for."""

    def check(self, spec: SandboxSpec) -> None:
        super().check(replace(spec, isolation="landlock"))

    def check_snapshot(self, spec: SandboxSpec, kind: SnapshotKind) -> None:
        super().check_snapshot(replace(spec, isolation="landlock"), kind)

    async def create(self, spec: SandboxSpec, first: FirstCommand | None = None) -> LocalBox:
        return await super().create(replace(spec, isolation="landlock"), first)


class TestLandlock(LocalHooks, ProviderConformance):
    spec = "tests.conformance.test_landlock:LandlockProvider"
    silence_bound = 18.0

    @pytest.fixture(scope="class", autouse=True)
    @classmethod
    def here(cls) -> None:
        """Skip the contract where Landlock is too old, or fail it in CI."""
        if lacks := landlock_lacks():
            lack(reason("Landlock of version 6", "use Linux 6.12 or newer", lacks), "DOCKER")

    @pytest.fixture(autouse=True)
    def lacks(self, request: pytest.FixtureRequest) -> None:
        """In the place of a check of what Landlock lacks, assert that just that is refused."""
        for capability, lacking in CHOSEN["landlock_lacks"].items():
            if request.function.__name__ in lacking["checks"]:
                assert python(request.getfixturevalue("shared"), lacking["refused"]) == "refused"
                pytest.skip(f"Landlock has no {capability}")

    def test_ports_are_refused(self, shared: Sandbox) -> None:
        for call in (
            shared.connect(80),
            shared.expose(80),
            shared.serve(0, "127.0.0.1:9"),
            shared.set_network(Egress(["pypi.org"])),
        ):
            with pytest.raises(ConfigurationError, match=r"has no ports: .*use provider 'docker'"):
                call.result(DEADLINE)

    def test_commands_start_in_the_workdir(self, session: Session) -> None:
        with pytest.raises(ConfigurationError, match=r"workdir='/workspace/deep/er'.*leave"):
            session.sandbox(workdir="/workspace/deep/er")


class OwnUidProvider(LandlockProvider):
    """Sandboxes with uids of their own and the system's Python, whoever may read the Python of these tests."""

    async def create(self, spec: SandboxSpec, first: FirstCommand | None = None) -> LocalBox:
        path = ":".join(_layout._SYSTEM_PATH)
        with (
            patch.object(_landlock, "_python_is_readable", lambda: True),
            patch.object(_layout, "search_path", lambda _: path),
        ):
            return await super().create(spec, first)


@pytest.mark.nightly
@needs_root("root gives sandboxes uids")
class TestOwnUid(TestLandlock):
    spec = "tests.conformance.test_landlock:OwnUidProvider"

"""Conformance tests for providers, as pytest classes to derive from."""

from sandboxkit.testing.conformance.egress import EgressConformance
from sandboxkit.testing.conformance.endings import EndingsConformance
from sandboxkit.testing.conformance.exec import ExecConformance, TerminalConformance
from sandboxkit.testing.conformance.files import FilesConformance
from sandboxkit.testing.conformance.forks import ForksConformance
from sandboxkit.testing.conformance.isolation import IsolationConformance
from sandboxkit.testing.conformance.kill import KillConformance, StrongKillConformance
from sandboxkit.testing.conformance.lifecycle import LifecycleConformance
from sandboxkit.testing.conformance.listing import ListingConformance, OtherProcessConformance
from sandboxkit.testing.conformance.mounts import MountsConformance
from sandboxkit.testing.conformance.neighbours import (
    NeighboursConformance,
    TerminalNeighboursConformance,
)
from sandboxkit.testing.conformance.pauses import PausesConformance
from sandboxkit.testing.conformance.ports import PortsConformance, SandboxPortsConformance
from sandboxkit.testing.conformance.silence import LostConnectionConformance, SilenceConformance
from sandboxkit.testing.conformance.snapshots import SnapshotsConformance
from sandboxkit.testing.conformance.starts import (
    CommandStartConformance,
    SandboxStartConformance,
)
from sandboxkit.testing.conformance.streams import StreamsConformance
from sandboxkit.testing.conformance.transfers import TransfersConformance
from sandboxkit.testing.conformance.volumes import VolumesConformance

__all__ = ["CoreConformance", "ProviderConformance"]


class CoreConformance(
    LifecycleConformance,
    ExecConformance,
    StreamsConformance,
    KillConformance,
    FilesConformance,
    ListingConformance,
    EndingsConformance,
    CommandStartConformance,
    SandboxStartConformance,
    NeighboursConformance,
    TransfersConformance,
    PortsConformance,
    EgressConformance,
    MountsConformance,
    VolumesConformance,
    SnapshotsConformance,
    PausesConformance,
    ForksConformance,
    SilenceConformance,
    LostConnectionConformance,
    TerminalConformance,
    TerminalNeighboursConformance,
):
    """The tests that even a provider without isolation must pass, such as FakeProvider."""


class ProviderConformance(
    CoreConformance,
    StrongKillConformance,
    OtherProcessConformance,
    IsolationConformance,
    SandboxPortsConformance,
):
    """All conformance tests. Derive a class named Test... and define `make_provider` and `spec`.

    Implement `freeze`, `thaw` and `cut`, which make the backend unresponsive and break connections
    to it. Name those that cannot be implemented in `cannot`.
    The sandboxes must have sh, setsid, grep, sed, stty and python3.
    """

"""The behaviours that every provider must show, as one pytest class to derive from."""

from sandboxkit.testing.conformance.endings import EndingsConformance
from sandboxkit.testing.conformance.exec import ExecConformance, TerminalConformance
from sandboxkit.testing.conformance.files import FilesConformance
from sandboxkit.testing.conformance.forks import ForksConformance
from sandboxkit.testing.conformance.isolation import IsolationConformance
from sandboxkit.testing.conformance.kill import KillConformance, StrongKillConformance
from sandboxkit.testing.conformance.lifecycle import LifecycleConformance
from sandboxkit.testing.conformance.listing import ListingConformance, OtherProcessConformance
from sandboxkit.testing.conformance.neighbours import (
    NeighboursConformance,
    TerminalNeighboursConformance,
)
from sandboxkit.testing.conformance.silence import LostConnectionConformance, SilenceConformance
from sandboxkit.testing.conformance.starts import (
    CommandStartConformance,
    SandboxStartConformance,
)
from sandboxkit.testing.conformance.streams import StreamsConformance
from sandboxkit.testing.conformance.transfers import TransfersConformance

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
    ForksConformance,
    SilenceConformance,
    LostConnectionConformance,
    TerminalConformance,
    TerminalNeighboursConformance,
):
    """What can be asked even of a provider that isolates nothing, such as FakeProvider."""


class ProviderConformance(
    CoreConformance,
    StrongKillConformance,
    OtherProcessConformance,
    IsolationConformance,
):
    """All behaviours. Derive a class named Test..., give it `make_provider` and `spec`.

    `freeze`, `thaw` and `cut` say how this backend falls silent and how connections to it break;
    what nobody can implement for it is named in `cannot`.
    The sandboxes must have sh, setsid, grep, sed, stty and python3.
    """

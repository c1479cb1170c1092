"""The behaviours that every provider must show, as one pytest class to derive from."""

from sandboxkit.testing.conformance.exec import ExecConformance, TerminalConformance
from sandboxkit.testing.conformance.files import FilesConformance
from sandboxkit.testing.conformance.isolation import IsolationConformance
from sandboxkit.testing.conformance.kill import KillConformance, StrongKillConformance
from sandboxkit.testing.conformance.lifecycle import LifecycleConformance
from sandboxkit.testing.conformance.listing import ListingConformance, OtherProcessConformance
from sandboxkit.testing.conformance.streams import StreamsConformance

__all__ = ["CoreConformance", "ProviderConformance"]


class CoreConformance(
    LifecycleConformance,
    ExecConformance,
    StreamsConformance,
    KillConformance,
    FilesConformance,
    ListingConformance,
):
    """What can be asked even of a provider that isolates nothing, such as FakeProvider."""


class ProviderConformance(
    CoreConformance,
    TerminalConformance,
    StrongKillConformance,
    OtherProcessConformance,
    IsolationConformance,
):
    """All behaviours. Derive a class named Test..., give it `make_provider` and `spec`.

    The sandboxes must have sh, setsid, grep and python3.
    """

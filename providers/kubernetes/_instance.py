"""The state that a provider keeps about each of its sandboxes in a cluster."""

from dataclasses import dataclass

from sandboxkit.providers._hosted.agent import HostedInstance


@dataclass(eq=False)
class PodInstance(HostedInstance):
    """The state that this process keeps about a sandbox in a cluster."""

    place: tuple[str, str] | None = None
    """The pod and its container, of a sandbox that is a claim; None before they are known."""

"""Where attackers and their neighbours run."""

from dataclasses import dataclass
from typing import Literal

from sandboxkit import Session
from sandboxkit.integrations.rewards import HostCompare, grading_session

__all__ = ["CONCURRENCY", "PLACES", "Neighbourhood", "Victims"]

CONCURRENCY = 4
_MEMORY_MB = 512

Victims = Literal["fresh", "pool"]


@dataclass(frozen=True, slots=True)
class Neighbourhood:
    """A provider, the profile of the attackers' sandboxes, and how their neighbours are graded."""

    name: str
    provider: str
    profile: Literal["standard", "strict"]
    victims: tuple[Victims, ...]

    def attackers(self) -> Session:
        """Sandboxes for attackers, each bounded as one of a submission is."""
        return Session(
            self.provider,
            profile=self.profile,
            network="none",
            memory_mb=_MEMORY_MB,
            tags="neighbours",
        )

    def graders(self, grader: HostCompare, victims: Victims) -> Session:
        """Sandboxes for the neighbours: graders' are strict, whatever the attackers' are."""
        pool = CONCURRENCY if victims == "pool" else 0
        return grading_session(
            grader, self.provider, max_concurrency=CONCURRENCY, pool=pool, tags="neighbours"
        )


PLACES = {
    place.name: place
    for place in (
        Neighbourhood("local", "local", "strict", ("fresh", "pool")),
        Neighbourhood("docker strict", "docker", "strict", ("fresh", "pool")),
        Neighbourhood("docker standard", "docker", "standard", ("fresh",)),
    )
}

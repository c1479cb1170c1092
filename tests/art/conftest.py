"""The backends on which rollouts must work."""

from tests.rewards.conftest import provider

__all__ = ["provider"]

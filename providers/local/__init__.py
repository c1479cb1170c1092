"""Sandboxes on this machine's own kernel: bubblewrap around the shared agent, no daemon."""

from sandboxkit.providers.local._provider import LocalProvider

__all__ = ["LocalProvider"]

"""Sandboxes on this machine, in Linux namespaces: no daemon, no root."""

from sandboxkit.providers.local._provider import LocalProvider

__all__ = ["LocalProvider"]

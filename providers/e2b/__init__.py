"""Sandboxes at E2B, through its own SDK: each is a small virtual machine made from a template."""

from sandboxkit.providers.e2b._provider import E2BProvider

__all__ = ["E2BProvider"]

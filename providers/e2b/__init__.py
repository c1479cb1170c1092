"""Sandboxes at E2B, through E2B's SDK: each is a small virtual machine made from a template."""

from sandboxkit.providers.e2b._provider import E2BProvider

__all__ = ["E2BProvider"]

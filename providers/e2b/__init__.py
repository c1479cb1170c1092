"""Sandboxes of E2B, through its own SDK: the account's templates, each sandbox a small machine."""

from sandboxkit.providers.e2b._provider import E2BProvider

__all__ = ["E2BProvider"]

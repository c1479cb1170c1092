"""Half-open intervals."""

from intervals.core import merge, subtract

__all__ = ["merge", "subtract"]

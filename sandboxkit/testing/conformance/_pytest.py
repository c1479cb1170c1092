"""pytest for the conformance checks, which `sandboxkit doctor --live` also makes where it is not installed."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pytest
else:
    try:
        import pytest
    except ImportError:
        from sandboxkit.testing.conformance import _without_pytest as pytest

__all__ = ["pytest"]

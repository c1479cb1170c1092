"""Frameworks that are installed apart from the rest: `make test-frameworks` requires them."""

import importlib
import os
from typing import Any

import pytest


def framework(name: str) -> Any:  # Any: it may have no types, or not be there
    """Its module; where that is not installed and not required, the test file is skipped."""
    if os.environ.get("SANDBOXKIT_REQUIRE_FRAMEWORKS"):
        return importlib.import_module(name)
    return pytest.importorskip(name, reason=f"{name} is not installed: make test-frameworks")

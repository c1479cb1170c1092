"""Frameworks that are installed apart from the rest, each in an environment of its own."""

import importlib
import os
from typing import Any

import pytest

from tests.components import reason


def framework(name: str) -> Any:  # Any: it may have no types, or not be there
    """Its module; where that is not installed and not required, the test file is skipped."""
    if os.environ.get("SANDBOXKIT_REQUIRE_FRAMEWORKS"):
        return importlib.import_module(name)
    remedy = "make test-frameworks test-trainers test-openenv test-harbor"
    return pytest.importorskip(name, reason=reason("framework", remedy, name))

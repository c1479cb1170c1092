"""The provider that files of `drivers.file_of` use; a test sets it."""

from typing import Any

from sandboxkit.integrations.rewards import Limits
from tests.trl.graders import Length, whole

__all__ = ["PROVIDER", "Length", "Limits", "whole"]

PROVIDER: Any = "local"

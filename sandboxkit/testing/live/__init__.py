"""Checks of one sandbox against a live backend, from its start to its end.

`sandboxkit doctor --live` prints these checks. They need no pytest.
"""

from sandboxkit.testing.live._run import checks
from sandboxkit.testing.live._subject import CheckResult

__all__ = ["CheckResult", "checks"]

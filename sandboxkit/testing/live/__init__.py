"""What a live account shows and an emulator cannot: one sandbox, checked from its start to its end.

`sandboxkit doctor --live` prints these checks. They need no pytest.
"""

from sandboxkit.testing.live._run import checks
from sandboxkit.testing.live._subject import Row

__all__ = ["Row", "checks"]

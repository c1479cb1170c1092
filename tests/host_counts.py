"""Programs that use up what the kernel counts for each uid, and programs that need some of it."""

from tests.data_here import beside

_GIVEN = beside(__file__)
ATTACKS: dict[str, str] = {
    name: _GIVEN["in_background"].format(code) for name, code in _GIVEN["attacks"].items()
}
"""Each prints how much it got, and keeps that in the background."""
VICTIMS: dict[str, str] = _GIVEN["victims"]
"""Honest programs that need the same counts; each prints "fine"."""

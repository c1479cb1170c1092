"""How other servers that speak E2B's protocol differ from E2B's own, as their public sources have it."""

from types import SimpleNamespace

from tests.data_here import beside

_ROWS = beside(__file__, "shapes.toml")
SHAPES = {
    name: SimpleNamespace(**{**_ROWS["e2b"], **_ROWS[row.get("like", name)], **row})
    for name, row in _ROWS.items()
}
"""By their names, which are options of the emulator; `shapes.toml` says what each field is."""

"""How other servers that speak E2B's protocol differ from E2B's own, as their public sources have it."""

import tomllib
from pathlib import Path
from types import SimpleNamespace

_ROWS = tomllib.loads(Path(__file__).with_name("shapes.toml").read_text())
SHAPES = {
    name: SimpleNamespace(**{**_ROWS["e2b"], **_ROWS[row.get("like", name)], **row})
    for name, row in _ROWS.items()
}
"""By their names, which are options of the emulator; `shapes.toml` says what each field is."""

"""Data that lies beside the tests, in TOML or JSON."""

import json
import tomllib
from pathlib import Path
from typing import Any


def beside(file: str, name: str = "") -> Any:  # Any: what TOML and JSON are
    """Return what the file of this name holds beside a Python file; without a name, its own with another ending."""
    path = Path(file).with_suffix(".toml")
    if name:
        path = path.parent / name
    elif not path.exists():
        path = path.with_suffix(".json")
    text = path.read_text()
    return tomllib.loads(text) if path.suffix == ".toml" else json.loads(text)

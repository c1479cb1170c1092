"""The table of trainers in docs/adapters.md: lines as they are, and no adapter is long."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "integrations" / "trainers"
LONGEST = 120


def test_the_table_has_each_adapter_with_its_number_of_lines() -> None:
    rows = re.findall(r"^\| .* \| \[`(\w+)\.py`\]\(\S+\) \| (\d+) \|", _document(), re.MULTILINE)
    real = {
        path.stem: len(path.read_text().splitlines())
        for path in FOLDER.glob("*.py")
        if not path.stem.startswith("_")
    }
    assert {name: int(lines) for name, lines in rows} == real
    assert max(real.values()) <= LONGEST


def test_each_use_takes_three_lines() -> None:
    for name in ("verl", "OpenRLHF", "slime", "SkyRL", "NeMo Gym"):
        (row,) = re.findall(rf"^\| {name} \(.*$", _document(), re.MULTILINE)
        assert len(re.findall("`[^`]+`", row.split(" | ")[1])) == 3, row


def _document() -> str:
    return (ROOT / "docs" / "adapters.md").read_text()

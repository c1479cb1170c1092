"""The programs of docs/adapters.md, for the tests that run them."""

import re
from pathlib import Path

_DOCUMENT = Path(__file__).parents[1] / "docs" / "adapters.md"


def use(framework: str) -> str:
    """The first code block under a framework's heading."""
    text = _DOCUMENT.read_text()
    heading = rf"^(?:## {framework}$|\*\*{framework}\*\* \()"
    (after,) = [text[found.end() :] for found in re.finditer(heading, text, re.MULTILINE)]
    return after.partition("```")[2].partition("\n")[2].partition("```")[0]

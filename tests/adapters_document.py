"""The lines of docs/adapters.md, for the tests that run them."""

import re
import textwrap
from pathlib import Path

_DOCUMENT = Path(__file__).parents[1] / "docs" / "adapters.md"


def use(framework: str) -> str:
    """The code in a framework's row; where that awaits, as the body of `async def main()`."""
    rows = [line.split(" | ") for line in _DOCUMENT.read_text().splitlines()]
    (cell,) = [row[1] for row in rows if row[0].removeprefix("| ").startswith(framework)]
    code = "\n".join(re.findall("`([^`]+)`", cell))
    if "await " not in code:
        return code
    imports = "\n".join(re.findall(r"^from .*|^import .*", code, re.MULTILINE))
    rest = re.sub(r"^(from|import) .*\n", "", code, flags=re.MULTILINE)
    return f"{imports}\nasync def main():\n{textwrap.indent(rest, '    ')}\n"

"""The tables of what providers cannot do are what their code refuses."""

import runpy
from pathlib import Path

from sandboxkit.providers.daytona import _spec as daytona
from sandboxkit.providers.e2b import _spec as e2b
from sandboxkit.providers.modal import _spec as modal

ROOT = Path(__file__).resolve().parents[2]
PROVIDERS = ROOT / "docs" / "providers.md"
BEGIN, END = "<!-- hosted: from the code -->\n", "<!-- end of hosted -->\n"
UNSUPPORTED: dict[str, dict[str, str]] = {
    "e2b": e2b.UNSUPPORTED,
    "daytona": daytona.UNSUPPORTED,
    "modal": modal.UNSUPPORTED,
}


def table() -> str:
    """The fields that raise ConfigurationError somewhere, each with every provider's reason."""
    fields = sorted({field for reasons in UNSUPPORTED.values() for field in reasons})
    rows = [["option", *(f"`{name}`" for name in UNSUPPORTED)], ["---"] * (1 + len(UNSUPPORTED))]
    for field in fields:
        rows.append([f"`{field}`", *(each.get(field, "yes") for each in UNSUPPORTED.values())])
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def test_the_page_of_providers_has_the_table() -> None:
    _, found, rest = PROVIDERS.read_text().partition(BEGIN)
    assert found, f"docs/providers.md lacks the block:\n{BEGIN}{table()}{END}"
    assert rest.partition(END)[0] == table()


def test_the_options_have_their_page() -> None:
    script = runpy.run_path(str(ROOT / "scripts" / "options.py"))
    assert (ROOT / "docs" / "options.md").read_text() == script["document"](), (
        "run python scripts/options.py"
    )

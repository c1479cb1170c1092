"""What CI leaves to `make nightly` is not what shows that something is weakened."""

from pathlib import Path

from tests.conformance.test_mutants import CASES
from tests.mutants_table import BEGIN, END, chosen, table

ROOT = Path(__file__).resolve().parents[2]
DOCUMENT = (ROOT / "CONTRIBUTING.md").read_text()


def test_the_document_has_what_the_smaller_suite_shows() -> None:
    tests = chosen()
    printed = table(tests)
    assert DOCUMENT.partition(BEGIN)[2].partition(END)[0] == printed
    fewer = {test for test in tests if "test_kill_kills_the_whole_tree" not in test}
    fewer -= {test for test in tests if "test_a_missing_step_is_detected[kill]" in test}
    assert f"| {len(CASES) - 2} of {len(CASES)} |" in table(fewer)
    assert "| 17 of 18 |" in table(fewer)

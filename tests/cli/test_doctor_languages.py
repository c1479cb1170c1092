"""`sandboxkit doctor --languages` says which languages compile and run here."""

import json

from sandboxkit.integrations.rewards.programs import LANGUAGES
from tests.cli.conftest import Cli


def test_every_language_has_a_line_that_says_what_is_missing(cli: Cli) -> None:
    result = cli("doctor", "-p", "local", "--languages", "--json")
    reports = {report["name"]: report for report in json.loads(result.stdout)}
    assert [*reports] == [language.name for language in LANGUAGES]
    assert reports["python"]["works"]
    assert reports["bash"]["works"]
    for report in reports.values():
        assert report["works"] or "give the session an image with" in report["detail"], report
    assert result.returncode == (0 if all(each["works"] for each in reports.values()) else 1)

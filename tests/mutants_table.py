"""`python -m tests.mutants_table`: which weakened parts are shown to be so by what CI runs."""

import functools
import os
import subprocess
import sys
from collections.abc import Collection
from pathlib import Path

from tests.conformance.test_mutants import CASES
from tests.data_here import beside
from tests.reset.attacks import ATTACKS
from tests.reset.mutants import MUTANTS

ROOT = Path(__file__).resolve().parents[1]
BEGIN, END = "<!-- mutants -->\n", "<!-- end of mutants -->\n"
VENDORS = ("e2b", "daytona", "modal")
_FOLDERS = ("tests/conformance", "tests/reset")
_MARKS = "not nightly"
_FELT = "tests/reset/test_attacks.py::test_an_attack_is_detected_without_a_reset"
_AFTER = "tests/reset/test_attacks.py::test_nothing_reaches_the_next_job"


@functools.cache
def chosen() -> frozenset[str]:
    """The ids of the tests of these folders that CI runs."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-m", _MARKS, *_FOLDERS]
    environment = {**os.environ, "PYTEST_ADDOPTS": ""}
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True
    )
    return frozenset(line for line in done.stdout.splitlines() if "::" in line)


def table(tests: Collection[str]) -> str:
    """How many mutants of each kind there are, and of how many one of these tests shows it."""
    # A check of the contract is shown to fail on its mutant, and runs on these providers.
    checked = {test.partition("[")[0] for test in tests if "/test_mutants.py" not in test}
    places: dict[str, set[str]] = {}
    for test in checked:
        file, *_, name = test.split("::")
        if file.startswith("tests/conformance/test_"):
            place = file.removeprefix("tests/conformance/test_").removesuffix(".py")
            places.setdefault(name, set()).add(place)
    ids = [f"{name}-{check}-{tree or None}" for _, name, check, tree in CASES]
    shown = "tests/conformance/test_mutants.py::test_the_check_fails_on_its_mutant"
    pairs = [
        check
        for each, (_, _, check, _) in zip(ids, CASES, strict=True)
        if f"{shown}[{each}]" in tests
    ]

    def on(*names: str) -> str:
        return f"{sum(places.get(check, set()) >= set(names) for check in pairs)} of {len(CASES)}"

    def some_vendor() -> str:
        count = sum(not places.get(check, set()).isdisjoint(VENDORS) for check in pairs)
        return f"{count} of {len(CASES)}"

    step = "tests/reset/test_mutants.py::test_a_missing_step_is_detected"
    steps = [each for each in MUTANTS if f"{step}[{each.without.replace(' ', '-')}]" in tests]
    tried = [
        each
        for each in steps
        if each.shown_by == "users" or f"{_AFTER}[{each.provider}-exec-{each.shown_by}]" in tests
    ]
    ways = [f"{at}-{mode}" for at in ("local", "docker") for mode in ("exec", "python")]
    felt, after = (
        {name for name in ATTACKS for way in ways if f"{test}[{way}-{name}]" in tests}
        for test in (_FELT, _AFTER)
    )
    counts = [on("local"), on("docker"), on("kubernetes"), some_vendor()]
    counts += [f"{len(tried)} of {len(MUTANTS)}", f"{len(felt)} of {len(ATTACKS)}"]
    counts += [f"{len(after)} of {len(ATTACKS)}"]
    rows = zip(beside(__file__)["labels"], counts, strict=True)
    head = "| mutants | shown each time |\n|---|---|\n"
    return head + "".join(f"| {what} | {count} |\n" for what, count in rows)


if __name__ == "__main__":
    sys.stdout.write(table(chosen()))

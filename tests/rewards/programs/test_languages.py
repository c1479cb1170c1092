"""Languages are data, and each built-in one compiles and runs where its packages are."""

import re

import pytest

from sandboxkit import ConfigurationError
from sandboxkit.integrations.rewards import Outcome
from sandboxkit.integrations.rewards.programs import LANGUAGES, Language, Program, language_of
from sandboxkit.integrations.rewards.programs._samples import CASES, SAMPLES
from tests.data_here import beside
from tests.rewards.programs.conftest import grade

GIVEN = beside(__file__, "data/languages.json")


def test_every_language_has_a_sample_and_packages() -> None:
    assert {language.name for language in LANGUAGES} == SAMPLES.keys()
    assert all(language.packages for language in LANGUAGES)


def test_a_name_means_one_language() -> None:
    names = [each for one in LANGUAGES for each in (one.name, *one.other_names)]
    assert len(names) == len(set(names))
    assert language_of("C++").name == "cpp17"


@pytest.mark.parametrize(("name", "nearest"), GIVEN["nearest"])
def test_an_unknown_language_names_the_nearest(name: str, nearest: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(f"did you mean '{nearest}'?")):
        language_of(name)


@pytest.mark.parametrize("wrong", GIVEN["unusable"])
def test_an_unusable_language_is_refused(wrong: dict[str, object]) -> None:
    values: dict[str, object] = {"name": "own", "source": "main.x", "run": ("x", "main.x"), **wrong}
    with pytest.raises(ConfigurationError):
        Language(**values)  # type: ignore[arg-type]  # what is tested


@pytest.mark.parametrize("language", [each.name for each in LANGUAGES])
def test_a_sample_compiles_and_runs(provider: str, language: str) -> None:
    task = {"cases": list(CASES), "language": language}
    verdict = grade(provider, Program(), SAMPLES[language], task, needs=language)
    assert verdict.outcome is Outcome.PASSED, verdict
    assert [part.outcome for part in verdict.parts] == [Outcome.PASSED] * len(CASES)


@pytest.mark.parametrize("source", GIVEN["java"].values(), ids=GIVEN["java"])
def test_a_program_in_java_is_found_as_its_compiler_does(source: str) -> None:
    task = {"cases": [{"stdin": "2 3", "stdout": "5"}], "language": "java"}
    assert grade("local", Program(), source, task, needs="java").reward == 1


def test_a_language_of_your_own_takes_five_lines(provider: str) -> None:
    awk = Language(
        "calculator",
        source="main.calc",
        run=("python3", "-c", "print(eval(open('main.calc').read()))"),
    )
    task = {"cases": [{"stdin": "", "stdout": "42\n"}]}
    assert grade(provider, Program(awk), "6 * 7", task).reward == 1


def test_a_toolchain_that_is_missing_is_no_fault_of_the_submission(provider: str) -> None:
    missing = Language(
        "mist", "main.m", ("./m",), ("no-such-compiler", "main.m"), "m", ("mist-dev",)
    )
    task = {"cases": [{"stdin": "", "stdout": "1\n"}]}
    with pytest.raises(ConfigurationError, match=r"no no-such-compiler.*mist-dev"):
        grade(provider, Program(missing), "1", task)


def test_a_broken_compiler_is_no_fault_of_the_submission(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(SAMPLES, "c", "not C, as if a library were missing")
    task = {"cases": [{"stdin": "", "stdout": "1\n"}]}
    with pytest.raises(ConfigurationError, match=r"a sample in c either.*libc6-dev"):
        grade("local", Program("c"), "int main( {", task, needs="c")


def test_status_127_of_a_program_is_its_own(provider: str) -> None:
    task = {"cases": [{"stdin": "", "stdout": "1\n"}]}
    verdict = grade(provider, Program("python"), "raise SystemExit(127)", task)
    assert (verdict.outcome, verdict.reward) == (Outcome.RUNTIME_ERROR, 0)

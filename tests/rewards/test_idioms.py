"""Tests in the ordinary idioms of Python grade a right submission 1 and a wrong one 0."""

import pytest

from sandboxkit.integrations.rewards import HostCompare, Limits, Outcome, Verdict
from tests.rewards.conftest import grade_all
from tests.rewards.corpus.idioms import IDIOMS

pytestmark = pytest.mark.timeout(600)
LIMITS = Limits(timeout=20, wall=40)

SHARED: dict[str, str] = {
    "a class of the submission is subclassed": "the class of the tests needs the real base class",
    "an abstract class is subclassed": "the class of the tests needs the real base class",
    "a descriptor in a class of the tests": "it works on private attributes of the tests' objects",
    "the state of a dataclass": "dataclasses.asdict() needs the real class",
    "members of an Enum": "issubclass(Color, Enum) needs the real class",
    "a copy of an object": "the tests change a dict that is an attribute of an object",
    "a context manager class": "the tests change a list that is an attribute of an object",
    "a context manager made of a generator": "the argument is changed when the block is left",
    "coroutines": "inspect.iscoroutinefunction() needs the real function",
    "coroutines that overlap": "coroutines of the tests run one after another",
    "an event between threads": "calls from several threads wait for each other",
    "a seeded random": "the submission gets no methods of the tests' generator",
    "a file that the submission wrote": "the sandboxes share no files",
    "a file that the tests wrote": "the sandboxes share no files",
    "a database in a file": "the sandboxes share no files",
    "an environment that is patched": "the tests patch their own process",
    "time that is patched": "the tests patch their own process",
    "logging that is captured": "the records are in the submission's process",
    "warnings that are captured": "the warnings are in the submission's process",
}
"""Idioms whose tasks need the tests beside the submission, each with the reason."""
IN_PLACE = {
    "a list sorted in place",
    "an argument that is not changed",
    "default arguments that are not shared",
    "nodes of a class of the tests",
}
"""Idioms whose tests look at what becomes of an argument, also where they use the result."""


def test_the_corpus_is_large_enough() -> None:
    assert len(IDIOMS) >= 35
    assert set(SHARED) <= set(IDIOMS)


def task(name: str) -> dict[str, object]:
    found = dict(IDIOMS[name].task)
    if name in SHARED:
        found["trust"] = "shared"
    if name in IN_PLACE:
        found["in_place"] = True
    return found


def test_every_reference_passes() -> None:
    verdicts = grade_all(
        "local",
        HostCompare(LIMITS),
        [(name, idiom.reference, task(name)) for name, idiom in IDIOMS.items()],
        in_turn=True,
    )
    assert {n: v.detail for n, v in verdicts.items() if v.outcome is not Outcome.PASSED} == {}
    trusted = {name: verdict.trust for name, verdict in verdicts.items()}
    assert trusted == {name: "shared" if name in SHARED else "isolated" for name in IDIOMS}


def test_every_wrong_submission_fails() -> None:
    verdicts = grade_all(
        "local",
        HostCompare(LIMITS),
        [(name, idiom.wrong, task(name)) for name, idiom in IDIOMS.items()],
        in_turn=True,
    )
    assert {n: v for n, v in verdicts.items() if not _is_failure(v)} == {}


def _is_failure(verdict: Verdict) -> bool:
    return verdict.outcome is not Outcome.PASSED and verdict.reward == 0.0

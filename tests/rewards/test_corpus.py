"""In every corpus what is correct passes, however odd it is, and what is wrong or a cheat fails."""

import json

import pytest

from sandboxkit.integrations.rewards import Grader, HostCompare, Limits, _judged
from tests.docker_here import require_docker
from tests.rewards.conftest import grade_all
from tests.rewards.corpus import CORPORA, DATA, Item, of_folder

pytestmark = pytest.mark.timeout(1800)
GENEROUS = HostCompare(Limits(timeout=60, deadline=1500))
FOLDERS = ("across", "beside", "honest", "humaneval_shaped", "idioms", "strangers")
SIZES = dict(zip(FOLDERS, (55, 11, 110, 30, 70, 78), strict=True))
Submission = tuple[str, str, Item]


def check_all(where: str, grader: Grader, submissions: list[Submission], *, passed: bool) -> None:
    """Grade all, and show those whose verdict is not what it should be."""
    rows = [(name, code, item.row) for name, code, item in submissions]
    verdicts = grade_all(where, grader, rows, in_turn=True)
    wrong = []
    for name, _, item in submissions:
        verdict = verdicts[name]
        outcome = "passed" if passed else item.outcome or verdict.outcome
        wanted = (outcome, passed, passed, item.row.get("trust", "isolated"))
        if (verdict.outcome, verdict.score, verdict.reward, verdict.trust) != wanted:
            wrong.append((name, verdict))
    assert wrong == []


def test_no_corpus_has_lost_items() -> None:
    assert [name for name, size in SIZES.items() if len(of_folder(name)) < size] == []
    assert sum(len(item.fails) for item in of_folder("strangers")) >= 350


@pytest.mark.parametrize(
    ("where", "folder"),
    [
        *(("local", folder) for folder in SIZES),
        *(("docker", folder) for folder in ("across", "honest", "humaneval_shaped")),
    ],
)
def test_what_is_correct_passes(where: str, folder: str) -> None:
    """In sandboxes that are reset; the honest submissions of the trials get fresh ones."""
    if where == "docker":
        require_docker()
    submissions = [(item.name, item.passes, item) for item in of_folder(folder) if item.passes]
    check_all(where, GENEROUS, submissions, passed=True)


@pytest.mark.parametrize("corpus", CORPORA)
def test_what_is_wrong_or_a_cheat_fails(corpus: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if (
        corpus == "strangers/judges"
    ):  # some use all of a judge's time, first beside others and then alone
        monkeypatch.setattr(_judged, "_JUDGE_SECONDS", 2)
    by_limits: dict[Limits, list[Submission]] = {}
    for item in CORPORA[corpus]:
        for name, code in item.fails.items():
            by_limits.setdefault(item.limits, []).append((f"{item.name}: {name}", code, item))
    for limits, submissions in by_limits.items():
        check_all("local", HostCompare(limits), submissions, passed=False)


def test_no_reference_solution_of_mbpp_is_refused(provider: str) -> None:
    """All are graded on local; on docker, where the same judge grades them, one in five."""
    rows = [json.loads(line) for line in (DATA / "mbpp_500.jsonl").read_text().splitlines()]
    assert len(rows) == 500
    items = [Item(str(row["task_id"]), row, row["code"]) for row in rows]
    chosen = items if provider == "local" else items[::5]
    check_all(provider, GENEROUS, [(item.name, item.passes, item) for item in chosen], passed=True)

"""Each check of `sandboxkit doctor --live` fails on a provider that is wrong in what it checks."""

from collections.abc import Callable

import pytest

from sandboxkit import Operation, SandboxError, Session
from sandboxkit.testing import FakeProvider
from sandboxkit.testing.live import _commands, _ends, _life, _run, _subject, _world
from tests.conformance import live_defects as defects
from tests.conformance import mutants

CHECKS = {
    check.name: check
    for check in (
        *_commands.CHECKS,
        *_world.CHECKS,
        *_ends.CHECKS,
        *_life.CHECKS,
        *_life.ENDS,
    )
}
CASES: list[tuple[str, type[FakeProvider]]] = [
    ("start", defects.SaysNothing),
    ("latency", defects.TrueFails),
    ("bytes", defects.WritesAsATerminal),
    ("bytes", mutants.DropsInput),
    ("statuses", mutants.AnswersLikeAShell),
    ("statuses", mutants.TakesStatusesForSignals),
    ("signals", mutants.TakesSignalsForExits),
    ("stderr", defects.MergesTheStreams),
    ("much output", defects.CutsLongOutput),
    ("at once", defects.RunsOneAtATime),
    ("user", defects.ReadsOldFiles),
    ("workdir", FakeProvider),  # its folder is elsewhere
    ("variables", defects.ShowsSecrets),
    ("variables", defects.ForgetsSecrets),
    ("terminal", defects.IgnoresResizes),
    ("files", defects.ForgetsModes),
    ("files", defects.ReadsOldFiles),
    ("network", defects.ReachesTheInternet),
    ("timeout", mutants.KillsNothing),
    ("timeout", mutants.KillsTheGroupOnly),
    ("kill and cancel", mutants.KillsTheLeaderOnly),
    ("kill and cancel", mutants.KillsTheNeighbours),
    ("silence", defects.GivesUpOnSilence),
    ("second client", FakeProvider),  # its sandboxes are known to one object only
    ("lifetime", defects.LivesTooLong),
    ("renew", defects.LivesTooLong),
    ("list", defects.ListsEverything),
    ("delete", mutants.ForgetsToDelete),
    ("nothing left", mutants.ForgetsToDelete),
]


@pytest.mark.parametrize(
    ("name", "defect"), CASES, ids=[f"{name}-{defect.__name__}" for name, defect in CASES]
)
def test_a_check_fails_on_what_is_wrong(
    name: str, defect: type[FakeProvider], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_life, "_GONE_SECONDS", 2.0)
    monkeypatch.setattr(_ends, "_DEAD_SECONDS", 3.0)
    monkeypatch.setattr(_commands, "_MEET", _commands._MEET.replace("-lt 300", "-lt 5"))
    fake = defect()

    def again() -> Session:
        return Session(FakeProvider() if name == "second client" else fake)

    session, other = Session(fake), Session(fake)
    try:
        other.sandbox().start().result(30)
        row = _row(name, session, again)
        assert row.held is False, row.seen
    finally:
        for each in (session, other):
            try:
                each.close().result(30)
            except ExceptionGroup as errors:
                assert errors.subgroup(SandboxError)  # noqa: PT017 - a mutant may refuse to delete
        for sandbox_id in list(fake._boxes):
            Operation(FakeProvider.delete(fake, sandbox_id)).result(30)


def test_every_check_has_a_defect_that_it_finds() -> None:
    assert {name for name, _ in CASES} == set(CHECKS)


def _row(name: str, session: Session, again: Callable[[], Session]) -> _subject.CheckResult:
    subject = _run.subject(session, again, {}, silence=2.0)
    if name == "nothing left":
        subject.sandbox.stop().result(30)
    return CHECKS[name].row(subject)

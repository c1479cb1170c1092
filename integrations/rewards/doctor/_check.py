"""Checks one task by grading its reference, cheats, and wrong variants of the reference."""

import asyncio
import dataclasses
import json
import math
import time
from collections.abc import Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sandboxkit import ConfigurationError, Session
from sandboxkit.integrations.rewards._boundary import TROUBLE, shown
from sandboxkit.integrations.rewards._cases import from_assert
from sandboxkit.integrations.rewards._limits import Limits
from sandboxkit.integrations.rewards._verdict import Grader, Verdict, masked
from sandboxkit.integrations.rewards.doctor._cheats import Cheat, cheats
from sandboxkit.integrations.rewards.doctor._mutants import Mutant, mutants
from sandboxkit.integrations.rewards.doctor._names import CheatNames, classes_of, names_of
from sandboxkit.integrations.rewards.doctor._report import (
    Shape,
    Status,
    TaskFinding,
    TaskReport,
)

# Any, throughout: a task is a row of a user's data set.
MUTANTS = 20
"""Maximum number of wrong variants of a reference to grade."""
SECONDS = 300.0
"""Time limit in seconds for one task, from the start of its first grading."""
_WEAK = 1 / 3
"""A task is weak if more than this share of the variants pass. A few may be as correct as the
reference, for example with `<` for `<=`."""
_BRIEF = 2.0
"""CPU time limit in seconds for a cheat or a variant, unless the reference needs more."""
_AT_ONCE = 4
"""Number of concurrent gradings in a session without a pool."""
_UNUSABLE = "correct the task"
_DISAGREE = "the reference and the tests disagree: correct one of them"


async def check(
    session: Session,
    grader: Grader,
    task: Mapping[str, Any],
    reference: str,
    *,
    name: str = "task",
    mutants: int = MUTANTS,
    seconds: float = SECONDS,
    room: asyncio.Semaphore | None = None,
) -> TaskReport:
    """Grade the reference, cheats and up to `mutants` wrong variants; report the task's defects.

    A task without usable tests is reported as refused. `room` limits the concurrent gradings of all
    checks that share it. The report covers all gradings that end within `seconds` of the start of the
    first. Infrastructure failures are reported as "unknown" and not raised.
    """
    begun = time.monotonic()
    room = room or room_of(session)
    checkup = _Checkup(session, grader, task, reference, room, seconds)
    status, findings = await checkup.run(mutants)
    return TaskReport(
        name,
        status,
        tuple(findings),
        checkup.shape,
        checkup.cheats,
        checkup.mutants,
        checkup.survivors,
        round(time.monotonic() - begun, 3),
    )


def room_of(session: Session) -> asyncio.Semaphore:
    """Return a semaphore for as many concurrent gradings as keep the session's pool busy."""
    return asyncio.Semaphore(2 * session.pool or _AT_ONCE)


@dataclass
class _Checkup:
    session: Session
    grader: Grader
    task: Mapping[str, Any]
    reference: str
    room: asyncio.Semaphore
    seconds: float
    """Time limit from the start of the first grading; waiting for it does not count."""
    shape: Shape = "judge"
    cheats: int = 0
    mutants: int = 0
    survivors: int = 0
    _until: float = math.inf
    _findings: list[TaskFinding] = field(default_factory=list)

    async def run(self, count: int) -> tuple[Status, list[TaskFinding]]:
        """Run the check with up to `count` wrong variants; return the status and the findings."""
        begun = time.monotonic()
        try:
            names = names_of(self.task, self.reference)
            self.shape = _shape(self.task)
        except ConfigurationError as error:
            return "refused", [TaskFinding("refused", str(error), _UNUSABLE)]
        if (objection := self._objection(self.task)) is not None:
            return await self._refused(objection, names, _UNUSABLE)
        verdict = await self._first(self.task)
        if verdict.reward is None:
            return "unknown", [TaskFinding("unknown", verdict.detail)]
        if verdict.score < 1:
            return await self._refused(f"{verdict.outcome}: {verdict.detail}", names, _DISAGREE)
        brief = _brief(self.grader, time.monotonic() - begun)
        await self._try_all(brief, names, count)
        return self._status(), self._findings

    def _objection(self, task: Mapping[str, Any]) -> str | None:
        """Return the error of the grader's check without a sandbox; None if there is none.

        An error in a later grading may concern the sandboxes and is not held against the task.
        """
        validate = getattr(self.grader, "validate", None)
        try:
            if validate is not None:
                validate(task)
        except ConfigurationError as error:
            return str(error)
        return None

    async def _first(self, task: Mapping[str, Any]) -> Verdict:
        """Grade the reference; return its verdict."""
        try:
            async with self.room:
                self._until = min(self._until, time.monotonic() + self.seconds)
                async with asyncio.timeout(self._left()):
                    return await self.grader.grade(self.session, self.reference, task)
        except TimeoutError:
            return masked("the reference was not graded in time")
        except TROUBLE as error:
            return masked(f"{type(error).__name__}: {shown(error)}")

    async def _refused(
        self, why: str, names: CheatNames, remedy: str
    ) -> tuple[Status, list[TaskFinding]]:
        """Return "refused" and a finding with the text `why`.

        Its remedy is the first key of the task with which the reference passes, else `remedy`.
        """
        for key, changed in _remedies(self.task, names, self.reference):
            if self._objection(changed) is not None:
                continue
            if (await self._first(changed)).score == 1:
                remedy = f"with {key} in the task its reference passes"
                if changed.get("trust") == "shared":
                    self.shape = "shared"
                break
        return "refused", [TaskFinding("refused", why, remedy)]

    async def _try_all(self, grader: Grader, names: CheatNames, count: int) -> None:
        """Grade the cheats, `count` variants and the reference again; record findings and counts."""
        tricks = cheats(names, self.reference)
        variants = mutants(self.reference, count)
        tried: list[Cheat | Mutant | None] = [*tricks, None, *variants]
        codes = [self.reference if each is None else each.code for each in tried]
        verdicts = await self._graded([self._grade(grader, code) for code in codes])
        failures = []
        survivors: list[Mutant] = []
        for each, verdict in zip(tried, verdicts, strict=True):
            if verdict is None or verdict.reward is None:
                failures.append("not graded in time" if verdict is None else verdict.detail)
                continue
            passed = verdict.score == 1
            match each:
                case Cheat():
                    self.cheats += 1
                    if passed:
                        self._findings.append(TaskFinding("bought", each.name, each.remedy))
                case Mutant():
                    self.mutants += 1
                    survivors += [each] if passed else []
                case None if not passed:
                    what = f"its reference passes only sometimes: {verdict.detail}"
                    remedy = "make the tests and the reference free of chance"
                    self._findings.insert(0, TaskFinding("refused", what, remedy))
        self.survivors = len(survivors)
        if self.survivors > 1 and self.survivors > _WEAK * self.mutants:
            remedy = "test what these lines decide"
            self._findings += [TaskFinding("weak", each.change, remedy) for each in survivors]
        if failures:
            what = f"{len(failures)} of {len(tried)} gradings failed: {failures[0]}"
            self._findings.append(TaskFinding("unknown", what))

    async def _grade(self, grader: Grader, code: str) -> Verdict:
        async with self.room:
            try:
                return await grader.grade(self.session, code, self.task)
            except TROUBLE as error:
                return masked(f"{type(error).__name__}: {shown(error)}")

    async def _graded(self, work: Sequence[Coroutine[Any, Any, Verdict]]) -> list[Verdict | None]:
        """Run the gradings concurrently; return the verdicts, None for those that did not end in time."""
        running = [asyncio.ensure_future(each) for each in work]
        try:
            await asyncio.wait(running, timeout=self._left())
            return [each.result() if each.done() else None for each in running]
        finally:
            for each in running:
                each.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    def _left(self) -> float:
        return max(0.0, self._until - time.monotonic())

    def _status(self) -> Status:
        order: tuple[Status, ...] = ("refused", "bought", "weak", "unknown", "fine")
        kinds = {"fine", *(finding.kind for finding in self._findings)}
        return next(each for each in order if each in kinds)


# Any: a row of a user's data set, and its values.
Remedy = tuple[str, dict[str, Any]]
"""The key as its author would write it, and the task with that key."""


def _remedies(task: Mapping[str, Any], names: CheatNames, reference: str) -> Iterator[Remedy]:
    """Yield the keys that the task lacks, beginning with those that weaken grading least."""
    if not any(task.get(name) for name in ("test", "tests", "test_list")):
        return
    defined = list(classes_of(reference))
    tried: dict[str, Any] = {"names": list(names.own)}
    if defined:
        tried |= {"classes": defined, "operators": defined}
    tried |= {"in_place": True, "varies": True, "trust": "shared"}
    for key, value in tried.items():
        if value and not task.get(key):
            yield f'"{key}": {json.dumps(value)}', {**task, key: value}


def _brief(grader: Grader, took: float) -> Grader:
    """Return the grader with shorter time limits, since cheats and variants may hang.

    `took` is the time in seconds that the reference needed.
    """
    limits = getattr(grader, "limits", None)
    if not isinstance(limits, Limits) or not dataclasses.is_dataclass(grader):
        return grader
    timeout = min(limits.timeout, max(_BRIEF, 2 * took))
    wall = min(limits.longest, 2 * timeout)
    brief: Grader = dataclasses.replace(
        grader, limits=dataclasses.replace(limits, timeout=timeout, wall=wall)
    )
    return brief


def _shape(task: Mapping[str, Any]) -> Shape:
    """Return how HostCompare grades the task."""
    if task.get("trust") == "shared":
        return "shared"
    lines = [from_assert(line) is not None for line in task.get("test_list") or ()]
    judge = bool(task.get("test") or task.get("tests")) or not all(lines)
    values = bool(task.get("cases")) or any(lines)
    if judge and values:
        return "values and judge"
    return "judge" if judge else "values"

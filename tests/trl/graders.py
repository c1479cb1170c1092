"""Graders for tests, in a module so that they can be pickled, and providers whose infrastructure fails."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Any

from sandboxkit import ProviderUnavailableError, SandboxError, SandboxSpec, Session
from sandboxkit.integrations.rewards import Outcome, Verdict
from sandboxkit.provider import FirstCommand
from sandboxkit.testing.fake import FakeBox, FakeProvider


class Length:
    """Scores an even number of characters, as a command in a sandbox counts them."""

    def __init__(self) -> None:
        self.graded: list[str] = []

    async def grade(self, session: Session, submission: str, task: Mapping[str, Any]) -> Verdict:
        self.graded.append(submission)
        try:
            result = await session.run(["wc", "-m"], stdin=submission)
        except SandboxError as error:
            return Verdict(Outcome.INFRA_ERROR, 0.0, "infra", str(error))
        passed = int(result.stdout) % 2 == 0
        return Verdict(Outcome.PASSED, 1.0) if passed else Verdict(Outcome.FAILED, 0.0)


class Broken:
    """Fails for submissions that contain the task's word, and trusts others as much as they say."""

    async def grade(self, session: Session, submission: str, task: Mapping[str, Any]) -> Verdict:
        if task["word"] in submission:
            return Verdict(Outcome.INFRA_ERROR, 0.0, "infra", "no capacity")
        trust: Any = "isolated" if submission.startswith("isolated") else "shared"
        return Verdict(Outcome.PASSED, 1.0, trust=trust)


class Sometimes:
    def __init__(self, failures: int) -> None:
        self.left, self.asked = failures, 0

    async def grade(self, session: Session, submission: str, task: Mapping[str, Any]) -> Verdict:
        self.asked += 1
        if self.asked <= self.left:
            return Verdict(Outcome.INFRA_ERROR, 0.0, "infra", "no capacity")
        return Verdict(Outcome.PASSED, 1.0)


class Hangs:
    async def grade(self, session: Session, submission: str, task: Mapping[str, Any]) -> Verdict:
        await session.run(["sleep", "600"])
        raise ProviderUnavailableError("not reached")


def whole(text: str) -> str | None:
    return text or None


class Refusing(FakeProvider):
    """Counts the sandboxes that were asked for, and refuses those of which the number, from 0, is chosen."""

    def __init__(self, refused: Callable[[int], bool] = lambda _: False, error: Any = None) -> None:
        super().__init__()
        self.error = error or ProviderUnavailableError
        self.refuses, self.asked, self.refused = refused, 0, 0

    async def create(self, spec: SandboxSpec, first: FirstCommand | None = None) -> FakeBox:
        number, self.asked = self.asked, self.asked + 1
        if self.refuses(number):
            self.refused += 1
            raise self.error("no capacity today")
        return await super().create(spec, first)


class Hanging(FakeProvider):
    async def create(self, spec: SandboxSpec, first: FirstCommand | None = None) -> FakeBox:
        await asyncio.Event().wait()
        raise AssertionError("unreachable")

"""Graders and providers for tests of the service's bounds."""

import asyncio
from collections.abc import Mapping
from typing import Any

from sandboxkit import ProviderUnavailableError, Session
from sandboxkit.integrations.rewards import TROUBLE, Outcome, Phase, Verdict, verdict_of
from sandboxkit.provider import FirstCommand
from sandboxkit.testing.fake import FakeBox, FakeProvider
from sandboxkit.types import SandboxSpec


class Mortal(FakeProvider):
    """Makes sandboxes until it is killed."""

    dead = False

    async def create(self, spec: SandboxSpec, first: FirstCommand | None = None) -> FakeBox:
        if self.dead:
            raise ProviderUnavailableError("the daemon died")
        return await super().create(spec, first)


class Hanging(FakeProvider):
    """Never finishes to make a sandbox."""

    async def create(self, spec: SandboxSpec, first: FirstCommand | None = None) -> FakeBox:
        await asyncio.Event().wait()
        raise AssertionError


class Held:
    """Grades a submission once it is let go, and counts how many it began and cancelled."""

    def __init__(self) -> None:
        self.begun = self.cancelled = 0
        self.let_go = False

    async def grade(self, session: Session, submission: str, task: Mapping[str, Any]) -> Verdict:
        self.begun += 1
        try:
            while not self.let_go:
                await asyncio.sleep(0.01)
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        passed = submission == "right"
        return Verdict(Outcome.PASSED if passed else Outcome.FAILED, float(passed))


class NeedsSandbox:
    """Passes each submission for which a sandbox starts."""

    async def grade(self, session: Session, submission: str, task: Mapping[str, Any]) -> Verdict:
        sandbox = session.sandbox()
        try:
            await sandbox.start()
        except TROUBLE as error:
            return verdict_of(error, Phase.STARTED)
        finally:
            await sandbox.stop()
        return Verdict(Outcome.PASSED, 1.0)

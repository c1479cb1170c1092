"""What the conformance classes share: the author's settings, fixtures, and waiting."""

import time
import uuid
from collections.abc import Callable, Iterator
from typing import ClassVar

import pytest

from sandboxkit import Operation, Sandbox, SandboxInfo, SandboxState, Session
from sandboxkit.provider import Provider

__all__ = ["DEADLINE", "Conformance", "mine", "token", "until"]

DEADLINE = 30.0
"""Seconds that anything awaited here may take on a slow machine."""


def until(condition: Callable[[], bool], what: str, within: float = DEADLINE) -> None:
    """Poll until the condition holds; the test fails when it does not in time."""
    end = time.monotonic() + within
    while not condition():
        if time.monotonic() > end:
            pytest.fail(f"not within {within} s: {what}")
        time.sleep(0.02)


class Conformance:
    """Settings of the provider under test, and fixtures."""

    spec: ClassVar[str] = ""
    """Where another process imports the provider's class: "package.module:Class"."""
    image: ClassVar[str | None] = None
    other_user: ClassVar[str | None] = None
    """A user that `exec(user=)` can switch to; None where the backend cannot switch users."""

    @classmethod
    def make_provider(cls) -> Provider:
        """Return a new provider; the author's class implements it."""
        raise NotImplementedError

    @pytest.fixture
    def provider(self) -> Iterator[Provider]:
        """A provider for one test."""
        provider = self.make_provider()
        yield provider
        Operation(provider.aclose()).result(DEADLINE)

    @pytest.fixture
    def session(self, provider: Provider) -> Iterator[Session]:
        """A session whose sandboxes carry a tag of their own."""
        with Session(provider, image=self.image, tags={"conformance": token()}) as session:
            yield session

    @pytest.fixture
    def sandbox(self, session: Session) -> Sandbox:
        """A started sandbox for one test."""
        return session.sandbox().start().result(DEADLINE)

    @pytest.fixture(scope="class")
    @classmethod
    def shared(cls) -> Iterator[Sandbox]:
        """A started sandbox for all tests of the class that leave nothing behind in it."""
        provider = cls.make_provider()
        with Session(provider, image=cls.image, tags={"conformance": token()}) as session:
            yield session.sandbox().start().result(DEADLINE)
        Operation(provider.aclose()).result(DEADLINE)

    @pytest.fixture
    def folder(self, shared: Sandbox) -> str:
        """An empty folder of its own in the shared sandbox."""
        path = f"/workspace/{token()}"
        shared.exec(["mkdir", path], check=True).result(DEADLINE)
        return path


def token() -> str:
    """Return a string that occurs nowhere else."""
    return uuid.uuid4().hex


def mine(session: Session) -> list[SandboxInfo]:
    """The session's sandboxes that the backend lists, but for those that have stopped."""
    return [
        info
        for info in session.list().result(DEADLINE)
        if info.tags.get("sandboxkit.session") == session.id
        and info.state is not SandboxState.STOPPED
    ]

"""What the conformance classes share: the author's settings, fixtures, and waiting."""

import time
import uuid
from collections.abc import Callable, Iterator
from typing import ClassVar, NoReturn, Unpack

import pytest

from sandboxkit import ConfigurationError, Operation, Sandbox, SandboxInfo, SandboxState, Session
from sandboxkit._spec import SpecOptions
from sandboxkit.provider import Provider

__all__ = ["DEADLINE", "Conformance", "limited", "mine", "token", "until"]

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
    cannot: ClassVar[frozenset[str]] = frozenset()
    """Which hooks, "freeze" or "cut", nobody can implement for this backend: what needs them is
    skipped by that name."""
    silence_bound: ClassVar[float] = 10.0
    """Seconds of silence after which every call has ended with an infrastructure error."""

    @classmethod
    def make_provider(cls) -> Provider:
        """Return a new provider; the author's class implements it."""
        raise NotImplementedError

    def freeze(self, provider: Provider, sandbox_id: str) -> None:
        """Let the backend's side of a sandbox fall silent, with its connections open.

        The author's class implements it from outside, as `docker pause` does, or puts "freeze"
        into `cannot`. A frozen sandbox may be deleted.
        """
        self._no_hook("freeze")

    def thaw(self, provider: Provider, sandbox_id: str) -> None:
        """Undo `freeze`."""
        self._no_hook("freeze")

    def cut(self, provider: Provider, sandbox_id: str) -> None:
        """Break the provider's connections to one sandbox once, at this moment.

        The author's class implements it, or puts "cut" into `cannot`.
        """
        self._no_hook("cut")

    def _no_hook(self, name: str) -> NoReturn:
        if name in self.cannot:
            pytest.skip(f"{type(self).__name__}.cannot names {name!r}")
        pytest.fail(f"implement {name}() in {type(self).__name__}, or put {name!r} into its cannot")

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


def limited(session: Session, **limit: Unpack[SpecOptions]) -> Sandbox:
    """A sandbox with one limit; the check is skipped where the provider refuses it by its name."""
    try:
        return session.sandbox(**limit)
    except ConfigurationError as error:
        (named,) = (f"{name}={value!r}" for name, value in limit.items())
        if named not in str(error):
            raise
        pytest.skip(str(error))

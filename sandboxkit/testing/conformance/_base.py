"""The base of the conformance classes: the author's settings, fixtures and polling."""

import time
import uuid
from collections.abc import Callable, Iterator
from typing import ClassVar, NoReturn, Unpack, get_args

from sandboxkit import ConfigurationError, Operation, Sandbox, SandboxInfo, SandboxState, Session
from sandboxkit.options import SpecOptions
from sandboxkit.provider import Box, Provider
from sandboxkit.testing.conformance._pytest import pytest
from sandboxkit.types import Profile

DEADLINE = 30.0
"""Timeout (s) of every wait, generous enough for a slow machine."""


def until(condition: Callable[[], bool], what: str, within: float = DEADLINE) -> None:
    """Poll until the condition holds; fail the test if it does not hold in time."""
    end = time.monotonic() + within
    while not condition():
        if time.monotonic() > end:
            pytest.fail(f"not within {within} s: {what}")
        time.sleep(0.02)


class Conformance:
    """The settings of the provider under test, and the fixtures."""

    spec: ClassVar[str] = ""
    """The import path of the provider's class, for other processes: "package.module:Class"."""
    image: ClassVar[str | None] = None
    other_user: ClassVar[str | None] = None
    """A user that `exec(user=)` can switch to; None if the backend cannot switch users."""
    cannot: ClassVar[frozenset[str]] = frozenset()
    """The hooks, "freeze" or "cut", that cannot be implemented for this backend; tests that need
    them are skipped."""
    snapshots_lose: ClassVar[frozenset[str]] = frozenset()
    """The file details that the backend's snapshots do not keep: "holes", "nanoseconds" or "xattrs"."""
    snapshot_profiles: ClassVar[tuple[Profile, ...]] = get_args(Profile)
    """The profiles with which the snapshot tests start sandboxes; by default all."""
    silence_bound: ClassVar[float] = 10.0
    """Every call must fail with an infrastructure error within this time (s) of silence."""

    silent_seconds: ClassVar[float] = 2.0
    """How long (s) a command prints nothing that must not be harmed by that."""

    @classmethod
    def make_provider(cls) -> Provider:
        """Return a new provider; the author's class must implement this."""
        raise NotImplementedError

    def freeze(self, box: Box) -> None:
        """Make the backend's side of a sandbox unresponsive, with its connections left open.

        The author's class implements this from outside the sandbox, as `docker pause` does, or puts
        "freeze" into `cannot`. A frozen sandbox may be deleted.
        """
        self._no_hook("freeze")

    def thaw(self, box: Box) -> None:
        """Undo `freeze`."""
        self._no_hook("freeze")

    def cut(self, box: Box) -> None:
        """Break the current connections to a sandbox, once.

        The author's class implements this, or puts "cut" into `cannot`.
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
        """A session whose sandboxes carry a unique tag."""
        with Session(provider, image=self.image, tags={"conformance": token()}) as session:
            yield session

    @pytest.fixture
    def sandbox(self, session: Session) -> Sandbox:
        """A started sandbox for one test."""
        return session.sandbox().start().result(DEADLINE)

    @pytest.fixture(scope="class")
    @classmethod
    def shared(cls) -> Iterator[Sandbox]:
        """A started sandbox, shared by the tests of the class that leave nothing behind in it."""
        provider = cls.make_provider()
        with Session(provider, image=cls.image, tags={"conformance": token()}) as session:
            yield session.sandbox().start().result(DEADLINE)
        Operation(provider.aclose()).result(DEADLINE)

    @pytest.fixture
    def folder(self, shared: Sandbox) -> str:
        """A new empty folder in the shared sandbox."""
        path = f"/workspace/{token()}"
        shared.exec(["mkdir", path], check=True).result(DEADLINE)
        return path


def token() -> str:
    """Return a unique string."""
    return uuid.uuid4().hex


def box_of(sandbox: Sandbox) -> Box:
    """Return the provider's object for a started sandbox."""
    assert sandbox._life.box is not None
    return sandbox._life.box


def mine(session: Session) -> list[SandboxInfo]:
    """Return the session's sandboxes that the backend lists, except stopped ones."""
    return [
        info
        for info in session.list().result(DEADLINE)
        if info.tags.get("sandboxkit.session") == session.id
        and info.state is not SandboxState.STOPPED
    ]


def limited(session: Session, **limit: Unpack[SpecOptions]) -> Sandbox:
    """Return a sandbox with one limit; skip the test if the provider refuses that limit."""
    try:
        return session.sandbox(**limit)
    except ConfigurationError as error:
        (named,) = (f"{name}={value!r}" for name, value in limit.items())
        if named not in str(error):
            raise
        pytest.skip(str(error))

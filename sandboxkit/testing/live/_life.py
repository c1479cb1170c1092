"""Checks of the sandbox itself: its lifetime, its listing, and its deletion."""

import datetime

from sandboxkit import (
    ConfigurationError,
    SandboxError,
    SandboxInfo,
    SandboxNotFoundError,
    SandboxState,
    SandboxTerminatedError,
    Session,
)
from sandboxkit.testing.live._subject import (
    Check,
    DifferentError,
    LiveSubject,
    UncheckableError,
    bounded,
    expect,
    wait_until,
)

_GONE_SECONDS = 60.0
_TOLERANCE = 120.0
"""Seconds; some vendors store lifetimes in whole minutes."""


def _lifetime(subject: LiveSubject) -> str:
    asked = subject.sandbox.spec.lifetime
    if asked is None:
        raise UncheckableError("no lifetime was requested")
    left = _left(subject)
    expect(abs(left - asked) < asked / 2 + _TOLERANCE, f"{left:.0f} s left of {asked:g} s")
    return f"{left:.0f} s left of {asked:g} s"


def _renew(subject: LiveSubject) -> str:
    asked = 2 * (subject.sandbox.spec.lifetime or 3600)
    try:
        bounded(subject.sandbox.renew(asked))
    except ConfigurationError as error:
        raise UncheckableError(str(error)) from None
    before, left = subject.sandbox.spec.lifetime or 3600, _left(subject)
    if left <= before:
        raise UncheckableError(
            f"renew({asked:g}) succeeded, but the listing has the original end time: {left:.0f} s left"
        )
    expect(abs(left - asked) < _TOLERANCE, f"{left:.0f} s left after renew({asked:g})")
    return f"{left:.0f} s left after renew({asked:g})"


def _listed(subject: LiveSubject) -> str:
    with subject.again() as session:
        found = bounded(session.list(tags=subject.tag))
        expect([info.id for info in found] == [subject.sandbox.id], f"found {_ids(found)}")
        expect(found[0].state is SandboxState.RUNNING, f"it is {found[0].state}")
        others = bounded(session.list(tags=f"{subject.tag}-other"))
        expect(not others, f"another tag found {_ids(others)}")
    return "found by its tag, running, alone"


def _deleted(subject: LiveSubject) -> str:
    running = subject.start("echo runs; sleep 600", timeout=600)
    next(iter(running.stdout), None)
    assert subject.sandbox.id is not None
    sandbox_id = subject.sandbox.id
    bounded(subject.sandbox.stop())
    try:
        error = running.exception(_GONE_SECONDS)
    except TimeoutError:
        raise DifferentError(f"its command was still running {_GONE_SECONDS:g} s later") from None
    expect(
        isinstance(error, SandboxTerminatedError | SandboxNotFoundError),
        f"the command that ran ended with {error!r}",
    )
    with subject.again() as session:
        seconds = wait_until(lambda: _is_gone(session, sandbox_id), _GONE_SECONDS)
    return f"gone within {seconds:.1f} s, its command raised {type(error).__name__}"


def _nothing_left(subject: LiveSubject) -> str:
    with subject.again() as session:
        try:
            wait_until(lambda: not bounded(session.list(tags=subject.tag)), _GONE_SECONDS)
        except DifferentError:
            left = _ids(bounded(session.list(tags=subject.tag)))
            raise DifferentError(f"left after {_GONE_SECONDS:g} s: {left}") from None
    return "nothing with its tag"


def _left(subject: LiveSubject) -> float:
    expires = bounded(subject.sandbox.status()).expires_at
    if expires is None:
        raise UncheckableError("the backend does not say when a sandbox expires")
    return (expires - datetime.datetime.now(datetime.UTC)).total_seconds()


def _is_gone(session: Session, sandbox_id: str) -> bool:
    try:
        same = bounded(session.from_id(sandbox_id))
        bounded(same.exec(["true"], timeout=30))
    except (SandboxNotFoundError, SandboxTerminatedError):
        return True
    except SandboxError:
        return False
    return False


def _ids(found: list[SandboxInfo]) -> str:
    return ", ".join(info.id for info in found) or "nothing"


CHECKS = (
    Check("lifetime", "the sandbox expires at the requested time", _lifetime),
    Check("renew", "it expires later", _renew),
    Check("list", "its tag finds it, running, and nothing else", _listed),
)
ENDS = (
    Check("delete", "it is gone, and so is its command", _deleted),
    Check("nothing left", "nothing in the listing", _nothing_left),
)

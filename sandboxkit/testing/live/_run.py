"""The run of all checks against one sandbox."""

import secrets
import time
from collections.abc import Callable, Generator

from sandboxkit import Session
from sandboxkit.options import SpecOptions
from sandboxkit.provider import Provider
from sandboxkit.testing.live import _commands, _ends, _life, _world
from sandboxkit.testing.live._subject import CheckResult, LiveSubject, bounded

_TAG = "sandboxkit-live"
_VARIABLE = "two\nlines, 'quoted' $HOME ü"
_START_SECONDS = 600.0
_LIFETIME = 900.0


def checks(
    provider: str | Provider | None, spec: SpecOptions, *, silence: float = 5.0
) -> Generator[CheckResult, None, None]:
    """Create a sandbox from `spec`, check it and delete it; yield each result as it is known.

    The sandbox is always deleted; close the generator if you stop early. `silence` is how long (s) the
    command of the silence check prints nothing. Raises the errors of creation and deletion; every other
    error becomes a result.
    """

    def again() -> Session:
        return Session(provider, **spec)

    with again() as session:
        found = subject(session, again, spec, silence=silence)
        for check in (*_commands.CHECKS, *_world.CHECKS, *_ends.CHECKS, *_life.CHECKS):
            yield check.row(found)
        for check in _life.ENDS:
            yield check.row(found)


def subject(
    session: Session, again: Callable[[], Session], spec: SpecOptions, *, silence: float
) -> LiveSubject:
    """Start a sandbox in `session` and return it as the subject of the checks."""
    tag, secret = f"{_TAG}:{secrets.token_hex(4)}", secrets.token_hex(16)
    sandbox = session.sandbox(
        tags=tag,
        env={"LIVE_VARIABLE": _VARIABLE},
        secrets={"LIVE_SECRET": secret},
        lifetime=spec.get("lifetime") or _LIFETIME + 2 * silence,
    )
    began = time.monotonic()
    bounded(sandbox.start(), _START_SECONDS)
    seconds = time.monotonic() - began
    return LiveSubject(session, sandbox, again, tag, _VARIABLE, secret, silence, seconds)

"""One sandbox from its start to its end, with every check between."""

import secrets
import time
from collections.abc import Callable, Generator

from sandboxkit import Session
from sandboxkit._spec import SpecOptions
from sandboxkit.provider import Provider
from sandboxkit.testing.live import _commands, _ends, _life, _world
from sandboxkit.testing.live._subject import Row, Subject, bounded

_TAG = "sandboxkit-live"
_VARIABLE = "two\nlines, 'quoted' $HOME ü"
_START_SECONDS = 600.0
_LIFETIME = 900.0


def checks(
    provider: str | Provider | None, spec: SpecOptions, *, silence: float = 5.0
) -> Generator[Row, None, None]:
    """Create one sandbox as `spec` says, check it, delete it; yield each row as it is known.

    The sandbox is deleted however this ends: close the generator where you leave it early.
    `silence` is how many seconds a command says nothing, and nothing else is sent.
    Raised: what keeps the sandbox from being created or deleted. All else is a row.
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
) -> Subject:
    """Start a sandbox of `session` to be checked."""
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
    return Subject(session, sandbox, again, tag, _VARIABLE, secret, silence, seconds)

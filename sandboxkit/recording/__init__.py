"""Recordings: `Session(record=...)` writes every call to a file; `Session(replay=...)` plays it back."""

import os

from sandboxkit import _registry
from sandboxkit._life import _exit
from sandboxkit.errors import ConfigurationError
from sandboxkit.provider import Provider
from sandboxkit.recording._file import read as lines
from sandboxkit.recording._record import RecordingProvider
from sandboxkit.recording._replay import ReplayProvider

__all__ = ["RecordingProvider", "ReplayProvider", "lines", "wrapped"]


def wrapped(
    provider: str | Provider | None,
    *,
    record: str | os.PathLike[str] | None,
    replay: str | os.PathLike[str] | None,
    pool: object,
) -> Provider:
    """Return the provider for a session with `record=` or `replay=`.

    Raises ConfigurationError for options that exclude each other, a recording that exists already,
    and a file that is not a recording of the requested provider.
    """
    if record is not None and replay is not None:
        raise ConfigurationError("record= and replay= exclude each other: leave one out")
    if pool is not None:
        raise ConfigurationError(
            f"pool={pool!r} cannot be recorded or replayed: which job gets which sandbox depends on time; "
            "leave pool out"
        )
    if replay is not None:
        replayed = ReplayProvider(replay)
        wanted = provider.name if isinstance(provider, Provider) else provider
        if wanted is not None and wanted != replayed.name:
            raise ConfigurationError(
                f"replay={str(replay)!r} is a recording of provider {replayed.name!r}, not of {wanted!r}: "
                "leave provider out"
            )
        return replayed
    assert record is not None
    if isinstance(provider, Provider):
        _exit.register_backend(provider)
        return RecordingProvider(provider, record)
    return RecordingProvider(_registry.load(provider), record, owned=True)

"""Turns a missing package of an integration into an error that names the extra to install."""

from collections.abc import Iterator
from contextlib import contextmanager

from sandboxkit import MissingExtraError

_DISTRIBUTION = "sandboxkit-sdk"


@contextmanager
def needs(extra: str) -> Iterator[None]:
    """Wrap imports: if a package is missing, raise MissingExtraError, which names the extra to install."""
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package in ("", "sandboxkit"):
            raise
        raise MissingExtraError(
            f"this integration needs the package {package!r}: pip install '{_DISTRIBUTION}[{extra}]'"
        ) from error

"""A package that an integration needs and that is not installed, as an error with a remedy."""

from collections.abc import Iterator
from contextlib import contextmanager

from sandboxkit import MissingExtraError

_DISTRIBUTION = "sandboxkit-sdk"


@contextmanager
def needs(extra: str) -> Iterator[None]:
    """Around imports: raises `MissingExtraError`, naming the extra, where a package is missing."""
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package in ("", "sandboxkit"):
            raise
        raise MissingExtraError(
            f"this integration needs the package {package!r}: pip install '{_DISTRIBUTION}[{extra}]'"
        ) from error

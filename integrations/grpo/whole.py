"""Files that are there whole or not at all."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

__all__ = ["whole"]


@contextlib.contextmanager
def whole(path: Path) -> Iterator[Path]:
    """Where to write what takes `path`'s place when the context ends.

    Where it raises, or has written nothing, `path` stays as it was and nothing is left beside it.
    """
    new = path.with_name(f".{path.name}")
    try:
        yield new
        if new.exists():
            os.replace(new, path)
    finally:
        new.unlink(missing_ok=True)

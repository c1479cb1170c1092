"""Replaces files atomically."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """Yield a temporary path; the file written there replaces `path` when the context ends.

    If the `with` block raises or writes nothing, `path` is unchanged. The temporary file is removed.
    """
    new = path.with_name(f".{path.name}")
    try:
        yield new
        if new.exists():
            os.replace(new, path)
    finally:
        new.unlink(missing_ok=True)

"""A folder per content in the cache of this user, which is filled once and then only read."""

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path


def cached(name: str, fill: Callable[[Path], object]) -> Path:
    """Return a folder of the cache, which `fill` fills if it is not there yet."""
    cache = Path(os.environ.get("SANDBOXKIT_CACHE_DIR") or Path.home() / ".cache" / "sandboxkit")
    target = cache / "tasks" / name
    if target.is_dir():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(prefix=f".{name}-", dir=target.parent))
    try:
        fill(fresh)
        try:
            fresh.rename(target)
        except OSError:
            if not target.is_dir():  # another process may have created it meanwhile
                raise
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    return target

"""Writing of metrics.jsonl in a run's folder: a line for each step or evaluation."""

import errno
import json
import math
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from sandboxkit.integrations._training import plot
from sandboxkit.integrations._training.atomic_write import atomic_write

__all__ = ["append", "cut"]


def append(run: Path, new: Iterable[Mapping[str, Any]]) -> None:
    """Append all rows or none; a number that is not finite becomes null. Raises OSError."""
    text = "".join(json.dumps({k: _plain(v) for k, v in row.items()}) + "\n" for row in new)
    data = text.encode()
    with (run / "metrics.jsonl").open("ab", buffering=0) as file:
        before = file.tell()
        if file.write(data) != len(data):
            file.truncate(before)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def cut(run: Path, last: int) -> None:
    """Delete the rows of steps after `last`, and an incomplete last line."""
    path = run / "metrics.jsonl"
    kept = [row for row in plot.rows(path) if last and int(row["step"] or 0) <= last]
    with atomic_write(path) as new:
        new.write_text("".join(json.dumps(row) + "\n" for row in kept), "utf-8")


def _plain(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value

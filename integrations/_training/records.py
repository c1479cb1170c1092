"""Stores a run's rollouts in one file of gzipped JSON lines per step, and its metrics in metrics.jsonl."""

import errno
import gzip
import json
import logging
import math
import os
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from sandboxkit.errors import ConfigurationError
from sandboxkit.integrations._training import plot
from sandboxkit.integrations._training.atomic_write import atomic_write
from sandboxkit.json_lines import json_lines

_LOG = logging.getLogger(__name__)
_FOLDER = "rollouts"
_NAME = re.compile(r"step-(\d+)\.jsonl\.gz")
_LEVEL = 4
"""Compression level, 1 to 9; low because training waits for the write."""

Row = Mapping[str, Any]  # Any: JSON; see rollout_record.py


def write(run: Path, step: int, rows: Iterable[Row]) -> None:
    """Atomically replace the step's file; without rollouts leave it as it is. Raises OSError."""
    path, count = _path(run, step), 0
    path.parent.mkdir(exist_ok=True)
    with atomic_write(path) as new:
        with gzip.open(new, "wt", compresslevel=_LEVEL, encoding="utf-8") as file:
            for count, row in enumerate(rows, 1):  # noqa: B007 - used after the loop
                file.write(json.dumps(row) + "\n")
        if not count:
            new.unlink()


def read(run: Path, step: int) -> Iterator[dict[str, Any]]:  # Any: JSON
    """Yield a step's rollouts; nothing if there is no file.

    If the file is damaged, log a warning and yield only the rollouts before the damage.
    """
    path = _path(run, step)
    try:
        with gzip.open(path) as file:
            for _, row in json_lines(file, str(path)):
                yield row
    except FileNotFoundError:
        return
    except (EOFError, gzip.BadGzipFile, zlib.error, ConfigurationError) as error:
        _LOG.warning("%s is damaged (%s): rollouts are missing", path, error)


def steps(run: Path) -> list[int]:
    """Return the numbers of the steps that have a file, in order."""
    folder = run / _FOLDER
    names = [_NAME.fullmatch(each.name) for each in folder.iterdir()] if folder.is_dir() else []
    return sorted(int(name[1]) for name in names if name)


def append(run: Path, metrics: Iterable[Row]) -> None:
    """Append all rows of metrics or none; a number that is not finite becomes null. Raises OSError."""
    text = "".join(json.dumps({k: _plain(v) for k, v in row.items()}) + "\n" for row in metrics)
    data = text.encode()
    with (run / "metrics.jsonl").open("ab", buffering=0) as file:
        before = file.tell()
        if file.write(data) != len(data):
            file.truncate(before)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def cut(run: Path, last: int) -> None:
    """Delete the metrics and files of the steps after `last`, and what interrupted writes left."""
    path = run / "metrics.jsonl"
    kept = [row for row in plot.rows(path) if last and int(row["step"] or 0) <= last]
    with atomic_write(path) as new:
        new.write_text("".join(json.dumps(row) + "\n" for row in kept), "utf-8")
    for step in steps(run):
        if step > last:
            _path(run, step).unlink()
    for left in (run / _FOLDER).glob(".step-*"):
        left.unlink()


def _plain(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _path(run: Path, step: int) -> Path:
    return run / _FOLDER / f"step-{step:06}.jsonl.gz"

"""Stores a run's rollouts on disk, in one file of gzipped JSON lines per step, written atomically."""

import gzip
import json
import logging
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from sandboxkit.integrations._training.atomic_write import atomic_write

__all__ = ["cut", "read", "steps", "write"]

_LOG = logging.getLogger(__name__)
_FOLDER = "rollouts"
_NAME = re.compile(r"step-(\d+)\.jsonl\.gz")
_LEVEL = 4
"""Compression level, 1 to 9; low because training waits for the write."""

Row = Mapping[str, Any]  # Any: JSON; see rollout_record.py


def write(run: Path, step: int, rows: Iterable[Row]) -> None:
    """Atomically replace the step's file; write no file when there are no rollouts. Raises OSError."""
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
        with gzip.open(path, "rt", encoding="utf-8") as file:
            for line in file:
                yield json.loads(line)
    except FileNotFoundError:
        return
    except (EOFError, gzip.BadGzipFile, zlib.error, ValueError) as error:
        _LOG.warning("%s is damaged (%s): rollouts are missing", path, error)


def steps(run: Path) -> list[int]:
    """Return the numbers of the steps that have a file, in order."""
    folder = run / _FOLDER
    names = [_NAME.fullmatch(each.name) for each in folder.iterdir()] if folder.is_dir() else []
    return sorted(int(name[1]) for name in names if name)


def cut(run: Path, last: int) -> None:
    """Delete the files of the steps after `last`, and temporary files of an interrupted write."""
    for step in steps(run):
        if step > last:
            _path(run, step).unlink()
    for left in (run / _FOLDER).glob(".step-*"):
        left.unlink()


def _path(run: Path, step: int) -> Path:
    return run / _FOLDER / f"step-{step:06}.jsonl.gz"

"""The rollouts of a run on disk: a file of compressed JSON lines for each step, whole or not there."""

import gzip
import json
import logging
import re
import zlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from sandboxkit.integrations.grpo.whole import whole

__all__ = ["cut", "read", "steps", "write"]

_LOG = logging.getLogger(__name__)
_FOLDER = "rollouts"
_NAME = re.compile(r"step-(\d+)\.jsonl\.gz")
_LEVEL = 4
"""Of compression, of 1 to 9: training waits for it."""

Row = Mapping[str, Any]  # Any: JSON; record.py says what is in it


def write(run: Path, step: int, rows: Iterable[Row]) -> None:
    """Those of a step, in the place of what is there; of none there is no file. Raises OSError."""
    path, count = _path(run, step), 0
    path.parent.mkdir(exist_ok=True)
    with whole(path) as new:
        with gzip.open(new, "wt", compresslevel=_LEVEL, encoding="utf-8") as file:
            for count, row in enumerate(rows, 1):  # noqa: B007 - for after the loop
                file.write(json.dumps(row) + "\n")
        if not count:
            new.unlink()


def read(run: Path, step: int) -> Iterator[dict[str, Any]]:  # Any: JSON
    """Those of a step; of a damaged file, which is logged, those before the damage.

    None where there is no file.
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
    """Which steps have a file, in order."""
    folder = run / _FOLDER
    names = [_NAME.fullmatch(each.name) for each in folder.iterdir()] if folder.is_dir() else []
    return sorted(int(name[1]) for name in names if name)


def cut(run: Path, last: int) -> None:
    """Take out the steps after `last`, and what a kill left of one."""
    for step in steps(run):
        if step > last:
            _path(run, step).unlink()
    for left in (run / _FOLDER).glob(".step-*"):
        left.unlink()


def _path(run: Path, step: int) -> Path:
    return run / _FOLDER / f"step-{step:06}.jsonl.gz"

"""Loads tasks from a folder, a .tar.gz, rows, or a data set repository on Hugging Face."""

import functools
import gzip
import hashlib
import os
import shutil
import zlib
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, MutableMapping
from importlib import resources
from io import FileIO
from itertools import chain
from pathlib import Path
from typing import Any

from sandboxkit import ConfigurationError, MissingExtraError, SandboxFileError
from sandboxkit.datasets import Folder
from sandboxkit.integrations.swe._cache import cached
from sandboxkit.integrations.swe._load import load_task
from sandboxkit.integrations.swe._swe_bench import SUFFIXES, read_rows, row_files, rows_of
from sandboxkit.integrations.swe._task import Task
from sandboxkit.transfers import DownloadLimits, extract

_LIMITS = DownloadLimits(max_bytes=4 << 30, max_files=200_000, links=True)
_HF = "hf:"
_MARKS = ("instruction.md", "task.yaml")
"""A folder with one of these files is a task."""


def load_tasks(
    source: str | os.PathLike[str] | Iterable[Mapping[str, object]],
    *,
    split: str = "test",
    image: str | None = None,
    in_place: bool | None = None,
    allow_network: str | Collection[str] = (),
    env_names: Collection[str] = (),
    refused: MutableMapping[str, ConfigurationError] | None = None,
) -> dict[str, Task]:
    """Return all tasks of a source as {id: task}; `load_task` says in which formats, and what the options are.

    A source is a folder of task folders (or one task), a `.tar.gz` of such a folder, rows in SWE-bench's format (a
    `.jsonl`, `.json` or `.parquet` file, or an iterable of mappings), or `hf:owner/name[@revision]`, a data set
    repository with one of these. Of a repository's rows those of `split` are loaded. A repository is resolved once per
    process, so a whole run uses one revision; huggingface_hub caches it. A link in a folder of tasks may not
    lead out of it.

    A row's sandbox has the image of its repository. What the agent leaves there, as a patch, is applied in a pristine
    one, the files of the row's test patch are restored, and the package swebench decides on the tests' log: the reward
    is 1 if all of FAIL_TO_PASS and PASS_TO_PASS pass. Raises ConfigurationError for a source that is missing or has no task, and for a task that cannot
    be loaded; with a dict `refused` the others are returned, and it gets that error by the task's id.
    """
    rows: Iterable[Any] | None = None
    if not isinstance(source, str | os.PathLike):
        rows, source = source, "the rows"
    text = os.fspath(source)
    folder = _repository(text.removeprefix(_HF)) if text.startswith(_HF) else Path(text)
    if rows is None and folder.is_file() and folder.suffix in SUFFIXES:
        rows = rows_of(folder)
    elif rows is None and folder.is_file():
        folder = _unpacked(folder)
    tasks, folders = dict[str, Task](), [] if rows is not None else _folders(folder)
    if rows is None and not folders and (files := row_files(folder, split)):
        rows = chain.from_iterable(map(rows_of, files))
    if rows is not None:
        if in_place:
            raise ConfigurationError(
                f"in_place={in_place!r}: rows of SWE-bench are graded in a pristine sandbox"
            )
        return read_rows(rows, image=image, allow_network=allow_network, refused=refused)
    if not folders:
        raise ConfigurationError(
            f"{text!r} contains no folder with an instruction.md or a task.yaml, and no rows of the split {split!r}"
        )
    for each in folders:
        try:
            tasks[each.name] = load_task(
                each,
                image=image,
                in_place=in_place,
                allow_network=allow_network,
                env_names=env_names,
            )
        except ConfigurationError as error:
            if refused is None or isinstance(error, MissingExtraError):
                raise
            refused[each.name] = error
    return tasks


def bundled_tasks() -> dict[str, Task]:
    """Return the tasks that come with sandboxkit."""
    return load_tasks(Path(str(resources.files("sandboxkit.integrations.swe"))) / "tasks")


def _folders(folder: Path) -> list[Path]:
    if not folder.is_dir():
        raise ConfigurationError(f"there is no folder or archive {str(folder)!r}")
    if any(os.path.lexists(folder / name) for name in _MARKS):
        return [folder]
    collection = Folder(folder, "the folder of tasks")
    found: list[Path] = []
    for depth in ("*", "*/*"):
        marked = {path.parent for name in _MARKS for path in folder.glob(f"{depth}/{name}")}
        found = found or sorted(marked)
    for path in found:
        collection.find(os.fspath(path.relative_to(folder)))
    for name, times in Counter(path.name for path in found).items():
        if times > 1:
            raise ConfigurationError(f"{str(folder)!r} has two tasks with the id {name!r}")
    if not found and len(archives := sorted(folder.glob("*.tar.gz"))) == 1:
        os.close(collection.open(collection.find(archives[0].name) or b""))
        return _folders(_unpacked(archives[0]))
    return found


@functools.cache
def _repository(name: str) -> Path:
    try:
        from huggingface_hub import snapshot_download
    except ImportError:
        raise ConfigurationError(
            f"{_HF}{name} needs huggingface_hub: pip install 'sandboxkit-sdk[swe]'"
        ) from None
    repo, _, revision = name.partition("@")
    try:
        snapshot = Path(snapshot_download(repo, repo_type="dataset", revision=revision or None))
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"{_HF}{name} cannot be fetched: {error}") from error
    # Its files are links to the blobs of the repository, which lead out of the tasks' folders.
    blobs = snapshot.resolve().parents[1] / "blobs"
    for path in snapshot.rglob("*"):
        if path.is_symlink() and path.resolve().parent != blobs:
            raise ConfigurationError(
                f"{_HF}{name}: {str(path)!r} is a link that leaves {str(blobs)!r}"
            )
    digest = hashlib.sha256(os.fsencode(snapshot.resolve())).hexdigest()[:32]
    return cached(digest, lambda fresh: shutil.copytree(snapshot, fresh, dirs_exist_ok=True))


def _unpacked(archive: Path) -> Path:
    """Unpack an archive into a cache folder named after its SHA-256; return the folder."""
    with archive.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()[:32]
    return cached(f"{digest}-1", lambda fresh: _extract(archive, fresh))


def _extract(archive: Path, folder: Path) -> None:
    with archive.open("rb") as file:
        opened = gzip.GzipFile if file.read(2) == b"\x1f\x8b" else FileIO
    try:
        with opened(archive, "rb") as stream:
            extract(stream.read, os.fspath(folder), False, _LIMITS)
    except (OSError, SandboxFileError, EOFError, zlib.error) as error:
        raise ConfigurationError(f"{archive} is not a readable .tar.gz: {error}") from error

"""Loads tasks from a folder, a .tar.gz, or a data set repository on Hugging Face."""

import functools
import hashlib
import os
import shutil
import tarfile
import tempfile
from importlib import resources
from pathlib import Path

from sandboxkit import ConfigurationError
from sandboxkit.integrations.swe._task import Task, load_task

_MAX_BYTES = 4 * 1024**3
_HF = "hf:"


def load_tasks(source: str | os.PathLike[str]) -> dict[str, Task]:
    """Return all tasks of a source as {id: task}.

    A source is a folder of task folders (or one task), a `.tar.gz` of such a folder, or
    `hf:owner/name[@revision]`, a data set repository with either. A repository is resolved once per
    process, so a whole run uses one revision; huggingface_hub caches it.
    Raises ConfigurationError for a source that is missing or has no task.
    """
    text = os.fspath(source)
    folder = _repository(text.removeprefix(_HF)) if text.startswith(_HF) else Path(text)
    if folder.is_file():
        folder = _unpacked(folder)
    tasks = {task.id: task for task in map(load_task, _folders(folder))}
    if not tasks:
        raise ConfigurationError(f"{text!r} contains no folder with an instruction.md")
    return tasks


def bundled_tasks() -> dict[str, Task]:
    """Return the tasks that come with sandboxkit."""
    return load_tasks(Path(str(resources.files("sandboxkit.integrations.swe"))) / "tasks")


def _folders(folder: Path) -> list[Path]:
    if not folder.is_dir():
        raise ConfigurationError(f"there is no folder or archive {str(folder)!r}")
    if (folder / "instruction.md").is_file():
        return [folder]
    found = sorted(path.parent for path in folder.glob("*/instruction.md"))
    if not found:
        found = sorted(path.parent for path in folder.glob("*/*/instruction.md"))
    names = [path.name for path in found]
    for name in names:
        if names.count(name) > 1:
            raise ConfigurationError(f"{str(folder)!r} has two tasks with the id {name!r}")
    if not found and len(archives := sorted(folder.glob("*.tar.gz"))) == 1:
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
        return Path(snapshot_download(repo, repo_type="dataset", revision=revision or None))
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"{_HF}{name} cannot be fetched: {error}") from error


def _unpacked(archive: Path) -> Path:
    """Unpack an archive into a cache folder named after its SHA-256; return the folder."""
    with archive.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()[:32]
    cache = Path(os.environ.get("SANDBOXKIT_CACHE_DIR") or Path.home() / ".cache" / "sandboxkit")
    target = cache / "tasks" / digest
    if target.is_dir():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    fresh = Path(tempfile.mkdtemp(prefix=f".{digest}-", dir=target.parent))
    try:
        _extract(archive, fresh)
        try:
            fresh.rename(target)
        except OSError:
            if not target.is_dir():  # another process may have created it meanwhile
                raise
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    return target


def _extract(archive: Path, folder: Path) -> None:
    total = 0
    try:
        with tarfile.open(archive) as tar:
            for member in tar:
                total += member.size
                if total > _MAX_BYTES:
                    raise ConfigurationError(f"{archive} contains more than {_MAX_BYTES} bytes")
                tar.extract(member, folder, filter="data")
    except (tarfile.TarError, EOFError) as error:
        raise ConfigurationError(f"{archive} is not a readable .tar.gz: {error}") from error

"""Images of the local provider: a root folder used in place, or an archive or a registry's image in a cache."""

import fcntl
import hashlib
import json
import os
import re
import tarfile
import tempfile
import zlib
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import anyio
import anyio.to_thread

from sandboxkit.errors import ImageNotFoundError, SandboxStartError
from sandboxkit.providers.local import _pull
from sandboxkit.providers.local._content import BadImageError, BadLayerError, reading
from sandboxkit.providers.local._folders import make_folder
from sandboxkit.providers.local._host_user import HostUser
from sandboxkit.providers.local._layers import unpack
from sandboxkit.providers.local._removal import remove_tree
from sandboxkit.providers.local._state import OwnerProcess, UsedImage

_EXTRACTING = re.compile(r"\.extracting-(\d+-\d+-\d+)-\w+")
_CHANGING = ("dev", "proc", "run", "sys", "tmp")
"""Folders of a root whose content changes while it is in use."""
_READER = 2
"""The version of what reads an image. What an earlier one has extracted is extracted anew."""
_ACCEPTED = (
    "the local provider takes a folder with a root file system, an archive of an image "
    "(`docker save`, or an OCI layout: a folder or a tar of it), or docker://NAME, an image of a registry. "
    "Without image= it offers this machine's own programs and Python"
)


@dataclass(frozen=True, slots=True)
class LocalImage:
    """A root file system, and the environment variables of its image."""

    root: Path
    reference: str
    """The absolute path of a folder or archive, or the name of a registry's image."""
    env: Mapping[str, str] = field(default_factory=dict)
    extracted: bool = False
    """Whether the image was extracted to our cache, where it belongs to `HostUser.owner`."""

    def version(self) -> str:
        """Return what changes if the image is extracted anew, or if something directly in its root changes.

        Changes of the folders that change anyway, such as /tmp, do not count. Raises ImageNotFoundError if its files are gone.
        """
        try:
            with os.scandir(self.root) as entries:
                found = [(self.root.stat().st_ctime_ns, "")]
                found += [
                    (entry.stat(follow_symlinks=False).st_ctime_ns, entry.name)
                    for entry in entries
                    if entry.name not in _CHANGING
                ]
        except OSError as error:
            raise ImageNotFoundError(
                f"image={self.reference!r}: its files are gone, or cannot be read: {error}"
            ) from error
        return hashlib.sha256(repr(sorted(found)).encode()).hexdigest()[:32]

    def used(self) -> UsedImage:
        """Return what the record of a sandbox with this image has."""
        return UsedImage(self.reference, str(self.root), self.version())


def absolute(image: str) -> str:
    """Return the name of an image that means the same in every working folder."""
    return image if _pull.is_remote(image) else str(Path(image).expanduser().resolve())


async def find(image: str, host: HostUser) -> LocalImage:
    """Return the image that a spec names, pulled and extracted if needed.

    Raises ImageNotFoundError if it is missing, unreadable or no image, SandboxStartError if a layer
    cannot be unpacked, and the errors of `_pull.pull`.
    """
    if _pull.is_remote(image):
        return await _from_registry(image, host)
    path = Path(image).expanduser()
    try:
        path = path.resolve(strict=True)
        if path.is_dir() and not os.path.lexists(path / "oci-layout"):
            if any((path / name).is_dir() for name in ("usr", "bin")):
                return LocalImage(path, str(path))
            raise ImageNotFoundError(
                f"image={image!r} is a folder, but not a root file system: it has neither "
                f"usr nor bin; {_ACCEPTED}"
            )
        return await _extracted(path, host)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise ImageNotFoundError(f"image={image!r} does not exist here; {_ACCEPTED}") from error
    except (OSError, ValueError) as error:
        raise ImageNotFoundError(f"image={image!r} cannot be read: {error}") from error


def _cache(host: HostUser) -> Path:
    chosen = os.environ.get("SANDBOXKIT_CACHE_DIR")
    if chosen:
        path = Path(chosen).absolute()
    elif host.is_root:
        path = Path("/var/cache/sandboxkit")
    else:
        path = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sandboxkit"
    path.parent.mkdir(parents=True, exist_ok=True)
    make_folder(path, exist_ok=True)
    path = path / "images"
    make_folder(path, exist_ok=True)
    return path


async def _from_registry(image: str, host: HostUser) -> LocalImage:
    """Return an image of a registry, as it was when this machine first pulled it, as docker does."""
    target = _place((image, host.owner()[0]), host)
    if not target.exists():
        async with _pulling_alone(target.parent):
            if not target.exists():
                async with _temporary(target.parent) as temporary:
                    await _pull.pull(image, temporary / "layout")
                    await anyio.to_thread.run_sync(
                        _fill, temporary / "layout", temporary, target, host
                    )
    return _kept(target, image)


@asynccontextmanager
async def _pulling_alone(cache: Path) -> AsyncIterator[None]:
    """Wait until no other sandbox's start, of any process, pulls an image to this cache."""
    descriptor = os.open(cache, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                await anyio.sleep(0.1)
        yield
    finally:
        os.close(descriptor)


async def _extracted(path: Path, host: HostUser) -> LocalImage:
    files = [path / "index.json", path / "manifest.json"] if path.is_dir() else [path]
    found = [each.lstat() for each in files if os.path.lexists(each)]
    versions = [(each.st_ino, each.st_size, each.st_mtime_ns) for each in found]
    target = _place((path, path.stat().st_ino, *versions, host.owner()[0]), host)
    if not target.exists():
        async with _temporary(target.parent) as temporary:
            await anyio.to_thread.run_sync(_fill, path, temporary, target, host)
    return _kept(target, str(path))


def _place(version: tuple[object, ...], host: HostUser) -> Path:
    """Return where the cache has, or will have, a version of an image."""
    found = repr((_READER, *version)).encode()
    return _cache(host) / hashlib.sha256(found).hexdigest()[:32]


@asynccontextmanager
async def _temporary(cache: Path) -> AsyncIterator[Path]:
    """Make a folder for one extraction, which a sweep removes if this process is killed."""
    prefix = f".extracting-{OwnerProcess.me()}-"
    folder = Path(tempfile.mkdtemp(prefix=prefix, dir=cache))
    try:
        await anyio.to_thread.run_sync(_remove_forgotten, cache)
        yield folder
    finally:
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(remove_tree, folder)


def _fill(path: Path, temporary: Path, target: Path, host: HostUser) -> None:
    """Extract an archive or a layout, and put the result at `target` unless another process was faster."""
    work = temporary / "image"
    make_folder(work)
    _extract(path, work, host.owner() if host.is_root else None)
    try:
        work.rename(target)
    except OSError:
        if not target.exists():
            raise


def _kept(target: Path, reference: str) -> LocalImage:
    env = json.loads((target / "env.json").read_bytes())
    return LocalImage(target / "root", reference, env, extracted=True)


def _remove_forgotten(cache: Path) -> None:
    """Remove incomplete extractions of processes that were killed."""
    for folder in cache.iterdir():
        match = _EXTRACTING.fullmatch(folder.name)
        if match is not None:
            maker = OwnerProcess.parse(match[1])
            if maker.is_here and not maker.alive():
                remove_tree(folder)


def _extract(path: Path, target: Path, owner: tuple[int, int] | None) -> None:
    """Unpack all layers with `owner`, so that a sandbox's user may change the files in its overlay."""
    root = target / "root"
    make_folder(root)
    if owner is not None:
        os.chown(root, *owner)
    try:
        with reading(path, target) as (env, layers):
            unpack(layers, root, owner)
    except (BadLayerError, OSError) as error:
        raise SandboxStartError(f"image {str(path)!r} cannot be unpacked: {error}") from error
    except (
        *(BadImageError, tarfile.TarError, zlib.error),
        *(EOFError, ValueError, LookupError, RecursionError),
    ) as error:
        raise ImageNotFoundError(
            f"image {str(path)!r} is not an image: {error}; {_ACCEPTED}"
        ) from error
    (target / "env.json").write_text(json.dumps(env))

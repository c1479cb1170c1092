"""Images of the local provider: a root folder used in place, or an archive or a registry's image in a cache."""

import hashlib
import json
import os
import re
import secrets
import stat
import tarfile
import time
import zlib
from collections.abc import AsyncIterator, Callable, Collection, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import anyio
import anyio.to_thread

from sandboxkit.errors import ImageNotFoundError, SandboxStartError
from sandboxkit.provider import FolderStore, PathLock
from sandboxkit.providers import _builders
from sandboxkit.providers.local import _pull
from sandboxkit.providers.local._content import BadImageError, BadLayerError, ImageConfig, reading
from sandboxkit.providers.local._folders import make_folder, remove_tree
from sandboxkit.providers.local._host_user import HostUser
from sandboxkit.providers.local._layers import unpack
from sandboxkit.providers.local._state import UsedImage
from sandboxkit.types import Dockerfile

_BUILT = "built:"
"""How the name of a Dockerfile's result in the cache begins; 8 digits for the state folder and 24 follow."""
_BUILD = re.compile(rf"{_BUILT}[0-9a-f]{{32}}")
_UNUSED = 3600.0
_CHANGING = ("dev", "proc", "run", "sys", "tmp")
"""Folders of a root whose content changes while it is in use."""
_ENTERED = stat.S_IROTH | stat.S_IXOTH
_READER = 3
"""The version of what reads an image. What an earlier one has extracted is extracted anew."""
_ACCEPTED = (
    "the local provider takes a folder with a root file system, an archive of an image "
    "(`docker save`, or an OCI layout: a folder or a tar of it), or docker://NAME, an image of a registry. "
    "Without image= it offers this machine's own programs and Python"
)


@dataclass(frozen=True, slots=True)
class LocalImage:
    """A root file system, and what the configuration of its image says."""

    root: Path
    reference: str
    """The absolute path of a folder or archive, or the name of a registry's image."""
    env: Mapping[str, str] = field(default_factory=dict)
    workdir: str = ""
    """The image's WORKDIR; empty for none."""
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
    is_name = _pull.is_remote(image) or _BUILD.fullmatch(image)
    return image if is_name else str(Path(image).expanduser().resolve())


async def find(image: str, host: HostUser) -> LocalImage:
    """Return the image that a spec names, pulled and extracted if needed.

    Raises ImageNotFoundError if it is missing, unreadable or no image, SandboxStartError if a layer
    cannot be unpacked, and the errors of `_pull.pull`.
    """
    if _pull.is_remote(image):
        return await _from_registry(image, host)
    if _BUILD.fullmatch(image):
        if not (target := _place_of_build(image, host)).exists():
            raise ImageNotFoundError(f"image={image!r} is not in {target.parent}: build it again")
        return _kept(target, image)
    path = Path(image).expanduser()
    try:
        path = path.resolve(strict=True)
        if path.is_dir() and not os.path.lexists(path / "oci-layout"):
            if any((path / name).is_dir() for name in ("usr", "bin")):
                if host.is_root and path.stat().st_mode & _ENTERED != _ENTERED:
                    raise ImageNotFoundError(
                        f"image={image!r}: root's sandboxes run as other users, who cannot enter it: chmod 755 {path}"
                    )
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


def cache(host: HostUser) -> Path:
    """Return the folder for what can be made again, which other users may read; it is made if missing."""
    chosen = os.environ.get("SANDBOXKIT_CACHE_DIR")
    if chosen:
        path = Path(chosen).absolute()
    elif host.is_root:
        path = Path("/var/cache/sandboxkit")
    else:
        path = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sandboxkit"
    path.parent.mkdir(parents=True, exist_ok=True)
    make_folder(path, exist_ok=True)
    return path


async def builders() -> list[_builders.Builder]:
    """Return the builders that are here: buildah, which needs no daemon, and docker."""
    return [*await _builders.buildah(), *await _builders.docker()]


async def build(
    file: Dockerfile, network: str, tell: Callable[[str], None], host: HostUser, state: Path
) -> str:
    """Build a Dockerfile; return a name for the result.

    Its files stay in the cache until `remove_builds`, of the same state folder.
    """
    builder = _builders.chosen(await builders(), file)
    name = f"{_BUILT}{_of_state(state)}{secrets.token_hex(12)}"
    target = _place_of_build(name, host)
    async with _temporary(target.parent) as temporary:
        archive, tag = temporary / "archive", name.replace(_BUILT, "sandboxkit-built:")
        await _builders.build_archive(builder, file, tag, network, tell, str(archive))
        await anyio.to_thread.run_sync(_fill, archive, temporary, target, host)
    return name


def remove_builds(host: HostUser, state: Path, used: Collection[str | None]) -> None:
    """Remove results of builds whose names are not in `used`, unless they are newer than an hour."""
    for path in (cache(host) / "images").glob(f"built-{_of_state(state)}*"):
        name = path.name.replace("built-", _BUILT)
        if name not in used and time.time() - path.stat().st_ctime > _UNUSED:
            remove_tree(path)


def _place_of_build(name: str, host: HostUser) -> Path:
    return _place((name,), host).with_name(name.replace(_BUILT, "built-"))


def _of_state(state: Path) -> str:
    return hashlib.sha256(os.fsencode(state)).hexdigest()[:8]


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
    while True:
        lock = PathLock.take(cache)
        if lock is not None:
            break
        await anyio.sleep(0.1)
    with lock:
        yield


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
    images = cache(host) / "images"
    make_folder(images, exist_ok=True)
    return images / hashlib.sha256(found).hexdigest()[:32]


@asynccontextmanager
async def _temporary(cache: Path) -> AsyncIterator[Path]:
    """Make a folder for one extraction, which a sweep removes if this process is killed."""
    temporary = FolderStore(cache, remove_tree).temporary()
    folder = await anyio.to_thread.run_sync(temporary.__enter__)
    try:
        yield folder
    finally:
        with anyio.CancelScope(shield=True):
            await anyio.to_thread.run_sync(temporary.__exit__, None, None, None)


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
    config = ImageConfig(*json.loads((target / "config.json").read_bytes()))
    return LocalImage(target / "root", reference, config.env, config.workdir, extracted=True)


def _extract(path: Path, target: Path, owner: tuple[int, int] | None) -> None:
    """Unpack all layers with `owner`, so that a sandbox's user may change the files in its overlay."""
    root = target / "root"
    make_folder(root)
    if owner is not None:
        os.chown(root, *owner)
    try:
        with reading(path, target) as (config, layers):
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
    (target / "config.json").write_text(json.dumps(config))

"""Images of the local provider: a root folder used in place, or an archive or a registry's image in a cache."""

import fcntl
import hashlib
import json
import os
import re
import shutil
import tarfile
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import anyio
import anyio.to_thread

from sandboxkit.errors import ImageNotFoundError, SandboxStartError
from sandboxkit.providers.local import _pull
from sandboxkit.providers.local._host_user import HostUser
from sandboxkit.providers.local._layers import BadLayerError, apply_layer
from sandboxkit.providers.local._state import OwnerProcess, UsedImage

__all__ = ["LocalImage", "absolute", "find"]

_EXTRACTING = re.compile(r"\.extracting-(\d+-\d+-\d+)-\w+")
_CHANGING = ("dev", "proc", "run", "sys", "tmp")
"""Folders of a root whose content changes while it is in use."""
_LARGEST_JSON = 64 << 20
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
                f"image={self.reference!r}: its files are gone, or cannot be read: {error}",
                provider="local",
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
        if path.is_dir() and not (path / "oci-layout").exists():
            if any((path / name).is_dir() for name in ("usr", "bin")):
                return LocalImage(path, str(path))
            raise ImageNotFoundError(
                f"image={image!r} is a folder, but not a root file system: it has neither "
                f"usr nor bin; {_ACCEPTED}",
                provider="local",
            )
        return await anyio.to_thread.run_sync(_extracted, path, host)
    except (FileNotFoundError, NotADirectoryError) as error:
        raise ImageNotFoundError(
            f"image={image!r} does not exist here; {_ACCEPTED}", provider="local"
        ) from error
    except PermissionError as error:
        raise ImageNotFoundError(
            f"image={image!r} cannot be read: {error}", provider="local"
        ) from error


_Open = Callable[[str], IO[bytes]]
"""Opens a file of an image by its name."""


@contextmanager
def _files(path: Path) -> Iterator[_Open]:
    """Yield the files of an OCI layout in a folder, or of a tar archive of one or from `docker save`."""
    if path.is_dir():
        yield lambda name: (path / name).open("rb")
        return
    with tarfile.open(path) as tar:

        def member(name: str) -> IO[bytes]:
            for candidate in (name, f"./{name}"):
                with suppress(KeyError):
                    if (found := tar.extractfile(candidate)) is not None:
                        return found
            raise FileNotFoundError(name)

        yield member


def _json(files: _Open, name: str) -> Any:  # Any: JSON
    with files(name) as file:
        return json.loads(file.read(_LARGEST_JSON))


def _blob(descriptor: Mapping[str, Any]) -> str:
    algorithm, _, digest = str(descriptor["digest"]).partition(":")
    if not digest.isalnum() or not algorithm.isalnum():
        raise ValueError(f"digest {descriptor['digest']!r}")
    return f"blobs/{algorithm}/{digest}"


def _contents(files: _Open) -> tuple[dict[str, Any], list[str]]:
    """Return the image's configuration and the names of its layers."""
    try:
        (saved, *_) = _json(files, "manifest.json")
        return _json(files, saved["Config"]), list(saved["Layers"])
    except FileNotFoundError:
        manifest = _json(files, "index.json")
    machine = {"x86_64": "amd64", "aarch64": "arm64"}.get(os.uname().machine)
    while "manifests" in manifest:
        # An index may point to another index. A manifest without a platform fits any machine.
        fitting = [
            entry
            for entry in manifest["manifests"]
            if entry.get("platform", {}).get("architecture", machine) == machine
        ]
        manifest = _json(files, _blob(fitting[0]))
    layers = [_blob(layer) for layer in manifest["layers"]]
    return _json(files, _blob(manifest["config"])), layers


def _cache(host: HostUser) -> Path:
    chosen = os.environ.get("SANDBOXKIT_CACHE_DIR")
    if chosen:
        path = Path(chosen).absolute()
    elif host.is_root:
        path = Path("/var/cache/sandboxkit")
    else:
        path = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sandboxkit"
    path = path / "images"
    path.mkdir(mode=0o755, parents=True, exist_ok=True)
    return path


async def _from_registry(image: str, host: HostUser) -> LocalImage:
    """Return an image of a registry, as it was when this machine first pulled it, as docker does."""
    target = _place((image, host.owner()[0]), host)
    if not target.exists():
        async with _pulling_alone(target.parent):
            if not target.exists():
                with _temporary(target.parent) as temporary:
                    await _pull.pull(image, Path(temporary, "layout"))
                    await anyio.to_thread.run_sync(
                        _fill, Path(temporary, "layout"), temporary, target, host
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


def _extracted(path: Path, host: HostUser) -> LocalImage:
    found = path.stat()
    index = path / "index.json" if path.is_dir() else path
    version = (path, found.st_ino, index.stat().st_size, index.stat().st_mtime_ns, host.owner()[0])
    target = _place(version, host)
    if not target.exists():
        with _temporary(target.parent) as temporary:
            _fill(path, temporary, target, host)
    return _kept(target, str(path))


def _place(version: tuple[object, ...], host: HostUser) -> Path:
    """Return where the cache has, or will have, a version of an image."""
    return _cache(host) / hashlib.sha256(repr(version).encode()).hexdigest()[:32]


def _temporary(cache: Path) -> "tempfile.TemporaryDirectory[str]":
    """Make a folder for one extraction, which a sweep removes if this process is killed."""
    _remove_forgotten(cache)
    return tempfile.TemporaryDirectory(prefix=f".extracting-{OwnerProcess.me()}-", dir=cache)


def _fill(path: Path, temporary: str, target: Path, host: HostUser) -> None:
    """Extract an archive or a layout, and put the result at `target` unless another process was faster."""
    work = Path(temporary, "image")
    work.mkdir()
    _extract(path, work, host.owner() if host.is_root else None)
    try:
        work.rename(target)
    except OSError:
        if not target.exists():
            raise
        shutil.rmtree(work)


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
                shutil.rmtree(folder, ignore_errors=True)


def _extract(path: Path, target: Path, owner: tuple[int, int] | None) -> None:
    """Unpack all layers with `owner`, so that a sandbox's user may change the files in its overlay."""
    root = target / "root"
    root.mkdir(mode=0o755)
    if owner is not None:
        os.chown(root, *owner)
    try:
        with _files(path) as files:
            config, layers = _contents(files)
            for name in layers:
                with files(name) as file:
                    apply_layer(file, root, owner)
    except (tarfile.TarError, KeyError, ValueError, IndexError, TypeError, EOFError) as error:
        raise ImageNotFoundError(
            f"image {str(path)!r} is not an image: {error!r}; {_ACCEPTED}", provider="local"
        ) from error
    except BadLayerError as error:
        raise SandboxStartError(f"image {str(path)!r}: {error}", provider="local") from error
    pairs = [str(entry).partition("=") for entry in config.get("config", {}).get("Env") or ()]
    env = {name: value for name, _, value in pairs if name}
    (target / "env.json").write_text(json.dumps(env))

"""Reads an image of a stranger, and returns checked plain data: its variables, and its layers as tar archives."""

import bz2
import gzip
import hashlib
import json
import os
import re
import shutil
import stat
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import IO, Any, NamedTuple, TypeVar, cast

import anyio.from_thread

_LARGEST = 64 << 30
_LARGEST_HEADER = 32 << 10
"""Bytes of all headers of one member of a tar archive."""
_LARGEST_JSON = 4 << 20
_LONGEST_NAME = 4096
_MAX_ENV = 128 << 10
"""Bytes of all variables as options of bubblewrap, for which its socket's buffer has room, and of one for execve."""
_MAX_FILES = 10_000
_MAX_LAYERS = 500
_MAX_LEVELS = 4
_PIECE = 1 << 20
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}|sha512:[0-9a-f]{128}")
_NAMED_BY_DIGEST = re.compile(r"(?:blobs/sha256/|sha256:)?([0-9a-f]{64})(?:\.json)?")
_NOT_TEXT = re.compile("[\0\ud800-\udfff]")
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
# macOS, where the doctor asks every provider whether it works, has no O_PATH.
_FOLDER = getattr(os, "O_PATH", 0) | os.O_NOFOLLOW | os.O_DIRECTORY | os.O_CLOEXEC


class BadImageError(Exception):
    """Something that an image may not have; the message names the file."""


class BadLayerError(Exception):
    """A layer that cannot be unpacked."""


class ImageConfig(NamedTuple):
    """The settings that sandboxes take from an image."""

    env: dict[str, str]
    workdir: str


class Stream:
    """A file that is read forward alone, until the start is cancelled, and compared with its digest at its end."""

    # Any: what has `read`, `seek` and `close`.
    def __init__(self, file: Any, name: str, digest: str = "") -> None:
        """`digest` is "ALGORITHM:HEX", or "" if none is known."""
        algorithm, _, self._expected = digest.partition(":")
        self._hash = hashlib.new(algorithm) if digest else None
        self.file, self.name, self._at = file, name, 0
        self.left = sys.maxsize
        """How many bytes `read` may still return."""

    def read(self, size: int = _PIECE) -> bytes:
        """Return up to `size` bytes; fewer only at the end."""
        self.left -= size
        if size < 0 or self.left < 0:
            raise BadLayerError(f"{self.name!r} has a header of more than {_LARGEST_HEADER} bytes")
        return self._next(size)

    def _next(self, size: int) -> bytes:
        anyio.from_thread.check_cancelled()
        data: bytes = self.file.read(size)
        self._at += len(data)
        if self._at > _LARGEST:
            raise BadLayerError(f"{self.name!r} has more than {_LARGEST} bytes")
        if self._hash is not None:
            self._hash.update(data)
        return data

    def tell(self) -> int:
        """Return how many bytes were read."""
        return self._at

    def seek(self, position: int) -> None:
        """Leave out what lies before `position`."""
        if position < self._at:
            raise BadLayerError(f"{self.name!r} has a file of a negative size, or within others")
        if self._hash is None:
            self.file.seek(position)
            self._at = position
        while self._at < position and self._next(min(position - self._at, _PIECE)):
            pass

    def finish(self) -> None:
        """Read the rest. Raises BadImageError if the digest is another one."""
        while self._next(_PIECE):
            pass
        if self._hash is not None and self._hash.hexdigest() != self._expected:
            raise BadImageError(f"{self.name!r} does not have the digest {self._expected!r}")

    def close(self) -> None:
        """Close the file."""
        self.file.close()


def tar_of(content: Stream) -> tarfile.TarFile:
    """Open an uncompressed tar archive, for `members`."""
    content.left = _LARGEST_HEADER
    return tarfile.TarFile(fileobj=cast(Any, content))  # Any: it needs no more of a file


def members(tar: tarfile.TarFile) -> Iterator[tarfile.TarInfo]:
    """Yield the members of an archive, with little memory for their headers. A file is extracted before the next one."""
    content = cast(Stream, tar.fileobj)
    while (member := tar.next()) is not None:
        content.left = sys.maxsize
        cast(Any, tar).pax_headers.clear()  # Any: for its types this mapping cannot change
        member.pax_headers = {}
        if max(len(member.name), len(member.linkname)) > _LONGEST_NAME:
            raise BadLayerError(f"{content.name!r} has the long name {member.name[:80]!r}...")
        yield member
        content.left = _LARGEST_HEADER


_Open = Callable[[str, str], Stream]
"""Opens a file of an image by its name, with a digest or "". Raises BadImageError."""
_T = TypeVar("_T")


class _MissingError(BadImageError): ...


@contextmanager
def reading(path: Path, scratch: Path) -> Iterator[tuple[ImageConfig, Iterator[Stream]]]:
    """Yield the configuration and the layers of an OCI layout in a folder, of a tar of one, or of an archive of `docker save`.

    A layer is read, and its digests are compared, before the next one is taken. A compressed archive is
    decompressed to a file in `scratch`. Raises BadImageError, BadLayerError and tarfile.TarError.
    """
    with ExitStack() as opened:
        folder = os.open(path if path.is_dir() else path.parent, _FOLDER)
        opened.callback(os.close, folder)
        if path.is_dir():
            yield _content(lambda name, digest: Stream(_below(folder, name), name, digest))
        else:
            file = opened.enter_context(_below(folder, path.name))
            yield _content(_archive(file, path.name, scratch, opened))


def _below(folder: int, name: str) -> IO[bytes]:
    """Open a regular file below a folder, without following a link."""
    parts = [part for part in name.split("/") if part != "."]
    if not parts or {"", ".."}.intersection(parts):
        raise BadImageError(f"the name {name!r:.200} leads out of the image")
    try:
        with ExitStack() as opened:
            for part in parts[:-1]:
                folder = os.open(part, _FOLDER, dir_fd=folder)
                opened.callback(os.close, folder)
            file = os.open(parts[-1], _FILE, dir_fd=folder)
    except FileNotFoundError as error:
        raise _MissingError(f"{name!r} is missing") from error
    except OSError as error:
        raise BadImageError(f"{name!r} cannot be read, or is a link: {error}") from error
    if stat.S_ISREG(os.fstat(file).st_mode):
        return open(file, "rb")
    os.close(file)
    raise BadImageError(f"{name!r} is not a regular file")


def _archive(file: IO[bytes], name: str, scratch: Path, opened: ExitStack) -> _Open:
    content = _decompressed(whole := Stream(file, name))
    if content is not whole:
        file = opened.enter_context(tempfile.TemporaryFile(dir=scratch))  # noqa: SIM115
        shutil.copyfileobj(Stream(content, name), file, _PIECE)
        file.seek(0)
    archive = tar_of(Stream(file, name))
    for number, member in enumerate(members(archive)):
        if number == _MAX_FILES or member.issparse():
            raise BadImageError(f"{name!r} has more than {_MAX_FILES} files, or sparse ones")
    archive.fileobj = file

    def open_file(name: str, digest: str) -> Stream:
        for candidate in (name, f"./{name}"):
            with suppress(KeyError):
                if (found := archive.extractfile(candidate)) is not None:
                    return Stream(found, name, digest)
        raise _MissingError(f"{name!r} is missing")

    return open_file


def _decompressed(file: Stream) -> Any:  # Any: what has `read`, `seek` and `close`.
    """Return what a file contains that was not read yet: itself, unless it is compressed."""
    start, source = file.file.peek(4), cast(Any, file)
    if start.startswith(b"\x1f\x8b"):
        return gzip.GzipFile(fileobj=source)
    if start.startswith(b"BZh"):
        return bz2.BZ2File(source)
    for other, magic in (("zstd", b"\x28\xb5\x2f\xfd"), ("xz", b"\xfd7zXZ")):
        if start.startswith(magic[:4]):
            raise BadLayerError(
                f"{file.name!r} is compressed with {other}; save it with gzip or none"
            )
    return file


def _json(files: _Open, name: str, kind: type[_T], digest: str = "") -> _T:
    with closing(files(name, digest)) as file:
        if len(data := file.read(_LARGEST_JSON + 1)) > _LARGEST_JSON:
            raise BadImageError(f"{name!r} has more than {_LARGEST_JSON} bytes")
        file.finish()
    try:
        return _typed(name, "the file", json.loads(data.decode()), kind)
    except (ValueError, RecursionError) as error:
        raise BadImageError(f"{name!r} is not JSON that can be read: {error}") from error


def _typed(name: str, field: str, value: object, kind: type[_T]) -> _T:
    if not isinstance(value, kind):
        raise BadImageError(f"{name!r}: {field} is {value!r:.80}, and not a {kind.__name__}")
    return value


def _field(name: str, value: object, field: str, kind: type[_T]) -> _T:
    """Return a field of an object in the file `name`; empty if it is missing or null."""
    found = _typed(name, f"what has {field}", value, dict).get(field)
    return kind() if found is None else _typed(name, field, found, kind)


def _blob(name: str, descriptor: object) -> tuple[str, str]:
    """Return the file to which an object in the file `name` points, and its digest."""
    digest = _field(name, descriptor, "digest", str)
    if _DIGEST.fullmatch(digest) is None:
        raise BadImageError(f"{name!r} has {digest!r:.80}, which is not a digest")
    return f"blobs/{digest.replace(':', '/')}", digest


def _saved(name: str) -> tuple[str, str]:
    """Return a file that the manifest of `docker save` names, and its digest if the name has it."""
    match = _NAMED_BY_DIGEST.fullmatch(name)
    return name, f"sha256:{match[1]}" if match else ""


def _content(files: _Open) -> tuple[ImageConfig, Iterator[Stream]]:
    name = "manifest.json"
    try:
        saved = _json(files, name, list)
    except _MissingError:
        name, manifest = "index.json", _json(files, "index.json", dict)
        for _ in range(_MAX_LEVELS):  # an index may point to another index
            if "manifests" not in manifest:
                break
            name, digest = _blob(name, _fitting(name, manifest))
            manifest = _json(files, name, dict, digest)
        config = _blob(name, manifest.get("config"))
        layers = [_blob(name, each) for each in _field(name, manifest, "layers", list)]
    else:
        (first, *_) = saved or [None]
        config = _saved(_field(name, first, "Config", str))
        names = _field(name, first, "Layers", list)
        layers = [_saved(_typed(name, "Layers", each, str)) for each in names]
    if len(layers) > _MAX_LAYERS:
        raise BadImageError(f"{name!r} has more than {_MAX_LAYERS} layers")
    found = _json(files, config[0], dict, config[1])
    diff_ids = _field(config[0], _field(config[0], found, "rootfs", dict), "diff_ids", list)
    if len(diff_ids) not in (0, len(layers)):
        raise BadImageError(f"{config[0]!r}: diff_ids are {len(diff_ids)} of {len(layers)} layers")
    checked = [_blob(config[0], {"digest": each})[1] for each in diff_ids] or [""] * len(layers)
    own = ImageConfig(_environment(config[0], found), _workdir(config[0], found))
    return own, _layers(files, layers, checked)


def _fitting(name: str, index: object) -> object:
    """Return the entry of an index for this machine. One without a platform fits any machine."""
    machine = {"x86_64": "amd64", "aarch64": "arm64"}.get(os.uname().machine)
    for entry in _field(name, index, "manifests", list):
        platform = _field(name, entry, "platform", dict)
        if _field(name, platform, "architecture", str) in ("", machine):
            return entry
    raise BadImageError(f"{name!r} has no image for this machine")


def _layers(files: _Open, layers: list[tuple[str, str]], diff_ids: list[str]) -> Iterator[Stream]:
    for (name, digest), diff_id in zip(layers, diff_ids, strict=True):
        blob = files(name, digest)
        with closing(blob), closing(Stream(_decompressed(blob), name, diff_id)) as content:
            yield content
            content.finish()
            blob.finish()


def _environment(name: str, config: object) -> dict[str, str]:
    env, size = dict[str, str](), 0
    for entry in _field(name, _field(name, config, "config", dict), "Env", list):
        variable, _, value = _typed(name, "Env", entry, str).partition("=")
        if _NOT_TEXT.search(entry):
            raise BadImageError(
                f"{name!r}: Env has {variable!r:.80}, which has a NUL or is not text"
            )
        size += len(f"--setenv {entry} ".encode())
        if variable:
            env[variable] = value
    if size > _MAX_ENV:
        raise BadImageError(f"{name!r}: Env takes more than {_MAX_ENV} bytes")
    return env


def _workdir(name: str, config: object) -> str:
    found = _field(name, _field(name, config, "config", dict), "WorkingDir", str)
    if _NOT_TEXT.search(found) or len(found) > _LONGEST_NAME:
        raise BadImageError(f"{name!r}: WorkingDir is {found!r:.80}, which is too long or not text")
    return found

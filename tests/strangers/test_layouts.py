"""Hostile layouts and archives of images are refused in time by a typed error, and leave nothing; honest ones are read."""

import bz2
import contextlib
import copy
import gzip
import json
import lzma
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sandboxkit import ImageNotFoundError, SandboxError, SandboxStartError, Session
from sandboxkit.providers.local import LocalProvider, _image
from sandboxkit.providers.local._host_user import HostUser
from sandboxkit.providers.local._image import LocalImage
from sandboxkit.providers.local._removal import remove_tree
from tests.local.conftest import make, provider, state
from tests.local.test_image import docker_save, layer
from tests.local.test_unprivileged import as_ordinary_user
from tests.strangers.layouts import (
    CANARY,
    HONEST,
    Layout,
    digest,
    member,
    saved,
    tar,
    tar_of,
    write,
)

__all__ = ["layer", "provider", "state"]  # fixtures
pytestmark = pytest.mark.anyio
FUZZ_SECONDS = float(os.environ.get("SANDBOXKIT_FUZZ_SECONDS", "600"))


@pytest.fixture
def private(tmp_path: Path) -> Path:
    """A tar archive of somebody else, which no image may show."""
    path = tmp_path / "private.tar"
    path.write_bytes(tar([(member("canary"), CANARY)]))
    path.chmod(0o600)
    return path


async def found(image: Path) -> LocalImage:
    with anyio.fail_after(20):
        return await _image.find(str(image), HostUser())


def cached(tmp_path: Path) -> list[str]:
    folder = tmp_path / "cache" / "images"
    return os.listdir(folder) if folder.exists() else []


def holds_the_canary(folder: Path) -> bool:
    files = (Path(at, name) for at, _, names in os.walk(folder) for name in names)
    return any(not f.is_symlink() and f.is_file() and CANARY in f.read_bytes() for f in files)


def changed(which: str, *path: Any, to: Any) -> Callable[[str, Any], Any]:
    """A change of one field of a document of a layout."""

    def change(name: str, value: Any) -> Any:
        if name == which:
            if not path:
                return to
            at = value
            for key in path[:-1]:
                at = at[key]
            at[path[-1]] = copy.deepcopy(to)
        return value

    return change


def linked(path: Path, name: str, target: str) -> Path:
    """A layout in which a file or folder is a link, and what it links to is there."""
    Layout().folder(path)
    (path / name).rename(path.parent / "elsewhere")
    os.symlink(target or path.parent / "elsewhere", path / name)
    return path


def endless(path: Path) -> Path:
    """Indexes that name each other's files, whose digests are right only for as long as somebody can compute them."""
    files = Layout().files()
    for level in range(40):
        entry = {"digest": digest(files["index.json"]), "size": 1}
        files["blobs/" + entry["digest"].replace(":", "/")] = files["index.json"]  # type: ignore[attr-defined]
        files["index.json"] = json.dumps({"manifests": [entry], "level": level}).encode()
    return write(path, files)


def itself(path: Path) -> Path:
    index = json.dumps({"manifests": [{"digest": "sha256:" + "d" * 64}]}).encode()
    return write(
        path, {"oci-layout": b"{}", "index.json": index, f"blobs/sha256/{'d' * 64}": index}
    )


def fifo(path: Path, name: str) -> Path:
    Layout().folder(path)
    (path / name).unlink(missing_ok=True)
    os.mkfifo(path / name)
    return path


def first_blob(path: Path) -> Path:
    """The file of the layer of a layout."""
    manifest = json.loads((path / "index.json").read_bytes())["manifests"][0]["digest"]
    described = json.loads((path / "blobs" / manifest.replace(":", "/")).read_bytes())
    return Path(path / "blobs" / described["layers"][0]["digest"].replace(":", "/"))


def layer_is(path: Path, make: Callable[[Path], object]) -> Path:
    Layout().folder(path)
    blob = first_blob(path)
    blob.unlink()
    make(blob)
    return path


def in_archive(path: Path, files: dict[str, bytes], *more: tarfile.TarInfo) -> Path:
    path.write_bytes(tar([*((member(name), data) for name, data in files.items()), *more]))
    return path


def raw(name: str, kind: bytes, size: int, data: bytes = b"", *, base256: bool = False) -> bytes:
    """A member of a tar archive with any size in its header."""
    block = bytearray(member(name, kind).tobuf(tarfile.USTAR_FORMAT))
    field = b"%011o\0" % size if not base256 else size.to_bytes(12, "big", signed=True)
    block[124:136] = field if not base256 else bytes([0xFF if size < 0 else 0x80]) + field[1:]
    block[148:156] = b"        "
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block) + data + bytes(-len(data) % 512)


def quadratic() -> bytes:
    return b"2 " * (500 << 10) + b"=\n"


def layered(*members: Any, data: bytes = b"") -> Callable[[Path], Path]:
    return lambda path: Layout([HONEST, tar(members) + data]).folder(path)


def bomb(size: int) -> bytes:
    """A member of `size` zeros, compressed."""
    piece = gzip.compress(bytes(1 << 24), 9)
    head = raw("bomb", tarfile.REGTYPE, size, base256=True)
    return gzip.compress(head) + piece * (size >> 24)


def config_is(data: bytes) -> Callable[[Path], Path]:
    return lambda path: Layout(change=changed("config", to=data)).folder(path)


def env_is(*entries: Any) -> Callable[[Path], Path]:
    return lambda path: Layout(env=list(entries)).folder(path)


SAVED = {"0/layer.tar": HONEST}
PLAIN = {"oci-layout": b"{}"}
NAMES: dict[str, Callable[[Path], object]] = {
    "a layer of docker save in the parent": lambda path: write(
        path, PLAIN | saved({"0.tar": HONEST}, Layers=["../private.tar"])
    ),
    "a layer of docker save in the parent, by way of a folder": lambda path: write(
        path, PLAIN | saved({"a/0.tar": HONEST}, Layers=["a/../../private.tar"])
    ),
    "a layer of docker save by an absolute path": lambda path: write(
        path, PLAIN | saved(SAVED, Layers=[f"{path.parent}/private.tar"])
    ),
    "a layer of docker save by an absolute path with two slashes": lambda path: write(
        path, PLAIN | saved(SAVED, Layers=[f"/{path.parent}/private.tar"])
    ),
    "the configuration in the parent": lambda path: write(
        path, PLAIN | saved(SAVED, Config="../private.json")
    ),
    "a layer without a name": lambda path: write(path, PLAIN | saved(SAVED, Layers=[""])),
    "a layer that is the layout": lambda path: write(path, PLAIN | saved(SAVED, Layers=["."])),
    "a layer's name with a NUL": lambda path: write(
        path, PLAIN | saved(SAVED, Layers=["0/layer.tar\0"])
    ),
    "a layer's name that is no text": lambda path: write(
        path, PLAIN | saved(SAVED, Layers=["\udcff"])
    ),
    "a layer's name that is too long": lambda path: write(
        path, PLAIN | saved(SAVED, Layers=["x" * 5000])
    ),
    "a digest that is a path": lambda path: Layout(
        manifest={"layers": [{"digest": "sha256:../../../private.tar"}]}
    ).folder(path),
    "a digest of letters": lambda path: Layout(
        manifest={"layers": [{"digest": "sha256:aa"}]}
    ).folder(path),
    "a digest with another algorithm": lambda path: Layout(
        manifest={"layers": [{"digest": "md5:" + "a" * 32}]}
    ).folder(path),
    "a digest in capitals": lambda path: Layout(
        manifest={"layers": [{"digest": "sha256:" + "A" * 64}]}
    ).folder(path),
    "a digest with a line break": lambda path: Layout(
        manifest={"layers": [{"digest": "sha256:" + "a" * 64 + "\n"}]}
    ).folder(path),
    "a layer that is a link to a private file": lambda path: layer_is(
        path, lambda blob: blob.symlink_to("../../../private.tar")
    ),
    "a layer that is a link within the layout": lambda path: layer_is(
        path, lambda blob: blob.symlink_to("../../index.json")
    ),
    "a layer that is a link to itself": lambda path: layer_is(
        path, lambda blob: blob.symlink_to(blob.name)
    ),
    "a layer that is a folder": lambda path: layer_is(path, lambda blob: blob.mkdir()),
    "a layer that is a FIFO": lambda path: layer_is(path, os.mkfifo),
    "a layer that is a socket": lambda path: layer_is(path, lambda blob: bound(blob)),
    "a layer that is missing": lambda path: layer_is(path, lambda blob: None),
    "the blobs are a link": lambda path: linked(path, "blobs", ""),
    "the blobs of an algorithm are a link": lambda path: linked(path, "blobs/sha256", ""),
    "the index is a link": lambda path: linked(path, "index.json", ""),
    "the index is a FIFO": lambda path: fifo(path, "index.json"),
    "the manifest of docker save is a FIFO": lambda path: fifo(path, "manifest.json"),
    "the manifest of docker save is a link": lambda path: os.symlink(
        "index.json", Layout().folder(path) / "manifest.json"
    ),
    "an index that names itself": itself,
    "an index in 40 others": endless,
    "no image for this machine": lambda path: Layout(
        change=changed("index", "manifests", 0, "platform", "architecture", to="s390x")
    ).folder(path),
    "no manifests": lambda path: Layout(index={"manifests": []}).folder(path),
    "nothing": lambda path: write(path, PLAIN),
}


def bound(path: Path) -> None:
    here = os.open(path.parent, os.O_RDONLY)
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(f"/proc/self/fd/{here}/{path.name}")
    os.close(here)


VALUES: list[Any] = [[], "text", 7, True]


def wrong_for(field: tuple[Any, ...]) -> list[Any]:
    is_object = field[-1] in (0, "config", "rootfs", "platform")
    return [7, True, "text" if is_object else {"a": []}, [[]]]


def changed_to(value: Any, *at: Any) -> Callable[[Path], object]:
    return lambda path: Layout(change=changed(*at, to=value)).folder(path)


DEEP = b"[" * 100_000 + b"]" * 100_000
DOCUMENTS: dict[str, Callable[[Path], object]] = {
    **{
        f"{which} is {json.dumps(value)}": changed_to(value, which)
        for which in ("config", "manifest", "index")
        for value in [*VALUES, None]
    },
    **{
        f"{'.'.join(map(str, at))} is {json.dumps(value)}": changed_to(value, *at)
        for at in (
            ("config", "config"),
            ("config", "config", "Env"),
            ("config", "rootfs"),
            ("config", "rootfs", "diff_ids"),
            ("config", "rootfs", "diff_ids", 0),
            ("manifest", "config"),
            ("manifest", "config", "digest"),
            ("manifest", "layers"),
            ("manifest", "layers", 0),
            ("manifest", "layers", 0, "digest"),
            ("index", "manifests"),
            ("index", "manifests", 0),
            ("index", "manifests", 0, "digest"),
            ("index", "manifests", 0, "platform"),
            ("index", "manifests", 0, "platform", "architecture"),
        )
        for value in wrong_for(at)
    },
    "Env with a NUL": env_is("A=x\0--share-net"),
    "Env with a NUL in a name": env_is("A\0--share-net=x"),
    "Env with a number": env_is(7),
    "Env with null": env_is(None),
    "Env with a lone surrogate": env_is("A=\ud800"),
    "Env with a long variable": env_is("A=" + "x" * (128 << 10)),
    "Env with many variables": env_is(*(f"V{n}=x" for n in range(10_000))),
    "an Env whose variables are long together": env_is(*(f"V{n}={'x' * 1000}" for n in range(200))),
    "JSON that is deep": config_is(DEEP),
    "JSON that is deep within objects": config_is(b'{"a":' * 100_000 + b"1" + b"}" * 100_000),
    "JSON with a number of a million digits": config_is(b'{"config": ' + b"9" * 1_000_000 + b"}"),
    "JSON that is not UTF-8": config_is(b'{"config": "\xff\xfe"}'),
    "JSON in UTF-16": config_is('{"config": {}}'.encode("utf-16")),
    "JSON after a byte order mark": config_is(b"\xef\xbb\xbf{}"),
    "JSON that ends": config_is(b'{"config": {'),
    "JSON that is large": config_is(b"{" + b" " * (5 << 20) + b"}"),
    "no JSON": config_is(b""),
    "more layers than one can have": lambda path: Layout(
        manifest={"layers": [{"digest": digest(b"")}] * 501}
    ).folder(path),
    "a manifest of docker save that is an object": lambda path: write(
        path, saved(SAVED) | PLAIN | {"manifest.json": b"{}"}
    ),
    "a manifest of docker save that is empty": lambda path: write(
        path, saved(SAVED) | PLAIN | {"manifest.json": b"[]"}
    ),
    "a manifest of docker save with a text": lambda path: write(
        path, saved(SAVED) | PLAIN | {"manifest.json": b'["x"]'}
    ),
    "a manifest of docker save without names": lambda path: write(
        path, saved(SAVED) | PLAIN | {"manifest.json": b"[{}]"}
    ),
    "a manifest of docker save with numbers": lambda path: write(
        path, PLAIN | saved(SAVED, Layers=[7])
    ),
    "a manifest of docker save whose layers are a text": lambda path: write(
        path, PLAIN | saved(SAVED, Layers="0/layer.tar")
    ),
}


def replaced(pattern: str, data: bytes) -> Callable[[Path], Path]:
    """A layout in which a file that matches has other content than its digest says."""

    def make(path: Path) -> Path:
        Layout().folder(path)
        for each in (path / "blobs/sha256").iterdir():
            if re.search(pattern.encode(), each.read_bytes()):
                each.write_bytes(data)
        return path

    return make


def longer(path: Path) -> Path:
    blob = first_blob(Layout().folder(path))
    blob.write_bytes(blob.read_bytes() + bytes(512))
    return path


DIGESTS: dict[str, Callable[[Path], object]] = {
    "a layer that is another": replaced(r"^\x1f\x8b", gzip.compress(tar_of({"other": b"x"}))),
    "a layer with more at its end": longer,
    "a configuration that is another": replaced(r'^{"architecture', b"{}"),
    "a manifest that is another": replaced(r'^{"schemaVersion', b'{"layers": []}'),
    "a diff_id of another layer": lambda path: Layout(
        config={"rootfs": {"diff_ids": [digest(b"")]}}
    ).folder(path),
    "a layer without its diff_id": lambda path: Layout(
        config={"rootfs": {"diff_ids": [digest(HONEST)] * 2}}
    ).folder(path),
    "a configuration of docker save that is another": lambda path: in_archive(
        path, saved(SAVED, name="a" * 64 + ".json")
    ),
    "a configuration of docker save whose diff_id is that of another layer": lambda path: (
        in_archive(path, saved(SAVED, {"rootfs": {"diff_ids": [digest(b"")]}}))
    ),
    "a layer of docker save that is named by another digest": lambda path: in_archive(
        path, saved({f"blobs/sha256/{'b' * 64}": HONEST})
    ),
}
BIG = 1 << 33
ARCHIVES: dict[str, Callable[[Path], object]] = {
    "an empty file": lambda path: write(path.parent, {path.name: b""}) / path.name,
    "an archive without members": lambda path: in_archive(path, {}),
    "zeros": lambda path: path.write_bytes(bytes(10240)) and path,
    "no archive": lambda path: path.write_bytes(b"text " * 1000) and path,
    "an archive that ends": lambda path: path.write_bytes(tar_of(Layout().files())[:1500]) and path,
    "gzip that ends": lambda path: (
        path.write_bytes(gzip.compress(tar_of(Layout().files()))[:500]) and path
    ),
    "gzip that is wrong": lambda path: path.write_bytes(b"\x1f\x8b\x08" + b"x" * 5000) and path,
    "bz2 that is wrong": lambda path: path.write_bytes(b"BZh9" + b"x" * 5000) and path,
    "zstd": lambda path: path.write_bytes(b"\x28\xb5\x2f\xfd" + b"x" * 5000) and path,
    "xz": lambda path: path.write_bytes(lzma.compress(tar_of(Layout().files()))) and path,
    "a member of docker save that is a link out of it": lambda path: in_archive(
        path, saved(SAVED, Layers=["l"]), member("l", tarfile.SYMTYPE, "../private.tar")
    ),
    "a member of docker save that is an absolute link": lambda path: in_archive(
        path, saved(SAVED, Layers=["l"]), member("l", tarfile.SYMTYPE, f"{path.parent}/private.tar")
    ),
    "a member of docker save that is a hard link out of it": lambda path: in_archive(
        path, saved(SAVED, Layers=["l"]), member("l", tarfile.LNKTYPE, "../private.tar")
    ),
    "a member that links to itself": lambda path: in_archive(
        path, saved(SAVED, Layers=["l"]), member("l", tarfile.SYMTYPE, "l")
    ),
    "members that link to each other": lambda path: in_archive(
        path,
        saved(SAVED, Layers=["l"]),
        member("l", tarfile.SYMTYPE, "m"),
        member("m", tarfile.SYMTYPE, "l"),
    ),
    "a manifest that is a device": lambda path: in_archive(
        path, {}, member("manifest.json", tarfile.CHRTYPE)
    ),
    "a negative size": lambda path: (
        path.write_bytes(raw("x", tarfile.REGTYPE, -1024, base256=True) + tar([])) and path
    ),
    "a negative size of a sparse file": lambda path: (
        path.write_bytes(raw("x", tarfile.GNUTYPE_SPARSE, -512, base256=True) + tar([])) and path
    ),
    "a header of 8 GiB": lambda path: sparse_file(
        path, raw("x", tarfile.XHDTYPE, BIG, base256=True), BIG
    ),
    "a long name of 8 GiB": lambda path: sparse_file(
        path, raw("x", tarfile.GNUTYPE_LONGNAME, BIG, base256=True), BIG
    ),
    "a header that takes quadratic time": lambda path: (
        path.write_bytes(raw("x", tarfile.XHDTYPE, len(quadratic()), quadratic())) and path
    ),
    "headers of headers": lambda path: (
        path.write_bytes(raw("x", tarfile.XHDTYPE, 12, b"12 path=a/b\n") * 5000 + tar([])) and path
    ),
    "more members than an image has": lambda path: in_archive(
        path, {}, *(member(f"{n}") for n in range(10_001))
    ),
}


def sparse_file(path: Path, head: bytes, size: int) -> Path:
    path.write_bytes(head)
    os.truncate(path, size + 10240)
    return path


def deep(depth: int) -> str:
    return "d/" * depth + "file"


LAYERS: dict[str, Callable[[Path], object]] = {
    "a deep file": layered(member(deep(1200))),
    "a deep file before a bad name": layered(member(deep(1200)), member("../bad")),
    "a file that links make deep": layered(
        *(
            each
            for n in range(6)
            for each in (
                member(f"{f'l{n - 1}/' if n else ''}{'d/' * 60}e", tarfile.DIRTYPE),
                member(
                    f"l{n}",
                    tarfile.SYMTYPE,
                    "/".join(["d/" * 60 + "e"] * (n + 1)).replace("//", "/"),
                ),
            )
        )
    ),
    "a path that is longer than the system's": layered(member("/".join(["x" * 250] * 20))),
    "a name that is longer than the system's": layered(member("x" * 300)),
    "a name with a NUL": lambda path: Layout(
        [HONEST, raw("x", tarfile.XHDTYPE, 13, b"13 path=a\0bc\n") + tar([member("y")])]
    ).folder(path),
    "a name that leads out": layered(member("a/../../../out")),
    "a hard link out": layered(member("l", tarfile.LNKTYPE, "../../../private.tar")),
    "a hard link through a link": layered(
        member("o", tarfile.SYMTYPE, "/" + "../" * 30 + "etc"),
        member("l", tarfile.LNKTYPE, "o/shadow"),
    ),
    "a hard link to a folder": layered(member("l", tarfile.LNKTYPE, "usr")),
    "a hard link to itself": layered(member("l", tarfile.LNKTYPE, "l")),
    "links that lead to themselves": layered(member("l", tarfile.SYMTYPE, "l"), member("l/x")),
    "a link with a target that is too long": layered(member("l", tarfile.SYMTYPE, "x" * 5000)),
    "a whiteout of nothing": layered(member("etc/.wh.")),
    "a whiteout of the folder": layered(member("etc/.wh..")),
    "a whiteout of the parent": layered(member("etc/.wh...")),
    "a file of 1 TiB": lambda path: Layout(
        [HONEST, raw("big", tarfile.REGTYPE, 1 << 40, base256=True)]
    ).folder(path),
    "a sparse file of 1 TiB": lambda path: Layout([HONEST, sparse_member(1 << 40)]).folder(path),
    "a file that ends": lambda path: Layout(
        [HONEST, raw("big", tarfile.REGTYPE, 5000, b"x" * 512)]
    ).folder(path),
    "a negative size in a layer": lambda path: Layout(
        [HONEST, raw("x", tarfile.REGTYPE, -1024, base256=True) + tar([])]
    ).folder(path),
    "a header of 8 GiB in a layer": lambda path: Layout(
        [HONEST, raw("x", tarfile.XHDTYPE, BIG, bytes(1 << 20), base256=True)]
    ).folder(path),
    "a header of a layer that takes quadratic time": lambda path: Layout(
        [HONEST, raw("x", tarfile.XHDTYPE, len(quadratic()), quadratic())]
    ).folder(path),
    "headers of headers in a layer": lambda path: Layout(
        [HONEST, raw("x", tarfile.XHDTYPE, 12, b"12 path=a/b\n") * 5000 + tar([])]
    ).folder(path),
    "a layer that is no archive": lambda path: Layout([b"text " * 1000]).folder(path),
    "a layer of zstd": lambda path: Layout(compress=lambda data: b"\x28\xb5\x2f\xfd" + data).folder(
        path
    ),
    "a layer of xz": lambda path: Layout(compress=lzma.compress).folder(path),
    "a layer with something after its gzip": lambda path: Layout(
        compress=lambda data: gzip.compress(data) + b"more"
    ).folder(path),
}


def sparse_member(size: int) -> bytes:
    """A member in GNU's old format for sparse files, without any data."""
    block = bytearray(raw("sparse", tarfile.GNUTYPE_SPARSE, 0))
    block[483:495] = bytes([0x80]) + size.to_bytes(11, "big")
    block[148:156] = b"        "
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block) + bytes(1024)


HOSTILE = NAMES | DOCUMENTS | DIGESTS | ARCHIVES | LAYERS


@pytest.mark.parametrize("make", HOSTILE.values(), ids=HOSTILE.keys())
async def test_a_hostile_image_is_refused_by_a_typed_error_and_leaves_nothing(
    tmp_path: Path, private: Path, make: Callable[[Path], object]
) -> None:
    make(image := tmp_path / "image")
    before = sorted(os.listdir(tmp_path))
    started = time.monotonic()
    with pytest.raises((ImageNotFoundError, SandboxStartError)) as caught:
        await found(image)
    assert time.monotonic() - started < 10
    assert str(image) in str(caught.value)
    assert "canary" not in str(caught.value)
    assert cached(tmp_path) == []
    assert sorted({*os.listdir(tmp_path), "cache"}) == sorted({*before, "cache"})
    assert (await found(Layout().folder(tmp_path / "honest"))).env == {"FROM_IMAGE": "yes"}


def dot_slash(files: dict[str, bytes]) -> list[Any]:
    """The members of `tar -c .`."""
    return [
        member(".", tarfile.DIRTYPE),
        *((member(f"./{name}"), data) for name, data in files.items()),
    ]


OLD_SAVE = [
    (member("a/layer.tar"), HONEST),
    member("b/layer.tar", tarfile.SYMTYPE, "../a/layer.tar"),
    *(
        (member(name), data)
        for name, data in saved({"a/layer.tar": HONEST, "b/layer.tar": b""}).items()
        if "layer" not in name
    ),
]
NEW_SAVE = Layout(compress=bytes).files()
NEW_SAVE |= {
    "manifest.json": json.dumps(
        [
            {
                "Config": next(n for n, data in NEW_SAVE.items() if data.startswith(b'{"arch')),
                "Layers": [f"blobs/sha256/{digest(HONEST)[7:]}"],
            }
        ]
    ).encode()
}
HONEST_SHAPES: dict[str, Callable[[Path], object]] = {
    "a layout in a folder": lambda path: Layout().folder(path),
    "a layout in an archive": lambda path: Layout().archive(path),
    "a layout in an archive of tar -c .": lambda path: (
        path.write_bytes(tar(dot_slash(Layout().files()))) and path
    ),
    "a layout in a compressed archive": lambda path: (
        path.write_bytes(gzip.compress(tar_of(Layout().files()))) and path
    ),
    "a layout in an archive of bzip2": lambda path: (
        path.write_bytes(bz2.compress(tar_of(Layout().files()))) and path
    ),
    "a layout with sha512": lambda path: Layout(algorithm="sha512").folder(path),
    "layers without compression": lambda path: Layout(compress=bytes).folder(path),
    "layers of bzip2": lambda path: Layout(compress=bz2.compress).folder(path),
    "layers of several gzip files": lambda path: Layout(
        compress=lambda data: gzip.compress(data[:700]) + gzip.compress(data[700:])
    ).folder(path),
    "a layout whose files are hard links": lambda path: os.link(
        first_blob(Layout().folder(path)), path.parent / "other"
    ),
    "an index in an index": lambda path: nested(path),
    "an index with other machines and attestations": lambda path: Layout(
        change=lambda name, value: others(value) if name == "index" else value
    ).folder(path),
    "a manifest without a platform": lambda path: Layout(
        change=lambda name, value: (
            {"manifests": [{"digest": value["manifests"][0]["digest"], "platform": None}]}
            if name == "index"
            else value
        )
    ).folder(path),
    "a configuration of null": lambda path: Layout(
        change=changed("config", "config", to=None)
    ).folder(path),
    "an Env of null": lambda path: Layout(env=None).folder(path),
    "a configuration without a root": lambda path: Layout(
        change=changed("config", "rootfs", to=None)
    ).folder(path),
    "no diff_ids": lambda path: Layout(config={"rootfs": {"diff_ids": None}}).folder(path),
    "an empty layer": lambda path: Layout([HONEST, tar([])]).folder(path),
    "docker save, an old one": lambda path: path.write_bytes(tar(OLD_SAVE)) and path,
    "docker save, a new one": lambda path: path.write_bytes(tar_of(NEW_SAVE)) and path,
    "docker save, compressed": lambda path: path.write_bytes(gzip.compress(tar(OLD_SAVE))) and path,
    "docker save, unpacked": lambda path: write(path, NEW_SAVE),
    "docker save of other tools": lambda path: (
        path.write_bytes(
            tar_of(
                saved(
                    {f"{'c' * 64}.tar.gz": gzip.compress(HONEST)},
                    name=f"sha256:{digest(json.dumps({'config': {'Env': None}}).encode())[7:]}",
                )
            )
        )
        and path
    ),
    "GNU's format": lambda path: Layout(
        [tar([(member("usr/" + "x" * 200), b"x"), member("etc/kept")], tarfile.GNU_FORMAT), HONEST]
    ).folder(path),
    "long names": lambda path: Layout([HONEST, tar([member("/".join(["x" * 100] * 30))])]).folder(
        path
    ),
    "attributes": lambda path: Layout(
        [
            HONEST,
            tar(
                [
                    member(
                        "x",
                        pax_headers={"SCHILY.xattr.security.capability": "x" * 20, "mtime": "1.5"},
                    )
                ]
            ),
        ]
    ).folder(path),
    "a global header": lambda path: Layout(
        [HONEST, raw("g", tarfile.XGLTYPE, 12, b"12 comment=\n") + tar([member("x")])]
    ).folder(path),
    "many folders within folders": lambda path: Layout([HONEST, tar([member(deep(200))])]).folder(
        path
    ),
    "devices and a FIFO": lambda path: Layout(
        [HONEST, tar([member("dev/null", tarfile.CHRTYPE), member("dev/fifo", tarfile.FIFOTYPE)])]
    ).folder(path),
    "names that begin with a slash": lambda path: Layout(
        [HONEST, tar([member("/etc/new"), member("./etc/other")])]
    ).folder(path),
    "links that lead up": lambda path: Layout(
        [HONEST, tar([member("l", tarfile.SYMTYPE, "/../../etc"), member("l/new")])]
    ).folder(path),
}


def nested(path: Path) -> Path:
    files = Layout().files()
    entry = {"digest": digest(files["index.json"])}
    files["blobs/" + entry["digest"].replace(":", "/")] = files["index.json"]
    return write(path, files | {"index.json": json.dumps({"manifests": [entry]}).encode()})


def others(index: dict[str, Any]) -> dict[str, Any]:
    strange = [
        {"digest": digest(b""), "platform": {"architecture": each}} for each in ("s390x", "unknown")
    ]
    return {"manifests": [*strange, *index["manifests"]]}


@pytest.mark.parametrize("make", HONEST_SHAPES.values(), ids=HONEST_SHAPES.keys())
async def test_an_honest_image_is_read(tmp_path: Path, make: Callable[[Path], object]) -> None:
    make(tmp_path / "image")
    image = await found(tmp_path / "image")
    assert (image.root / "etc/kept").read_bytes() == b"kept\n"
    assert (image.root / "usr/bin/again").samefile(image.root / "bin/program")
    assert image.env in ({}, {"FROM_IMAGE": "yes"})
    assert cached(tmp_path) == [image.root.parent.name]


async def test_what_an_older_version_extracted_is_extracted_anew(tmp_path: Path) -> None:
    image = Layout().folder(tmp_path / "image")
    index = (image / "index.json").stat()
    old = (image, image.stat().st_ino, index.st_size, index.st_mtime_ns, HostUser().owner()[0])
    place = tmp_path / "cache/images" / digest(repr(old).encode())[7:39]
    write(place, {"env.json": b'{"A": "x\\u0000--share-net"}', "root/canary": CANARY})
    assert (await found(image)).env == {"FROM_IMAGE": "yes"}


async def test_a_layout_that_changes_is_another_image(tmp_path: Path) -> None:
    first = await found(write(tmp_path / "image", NEW_SAVE))
    changed_file = tmp_path / "image/manifest.json"
    changed_file.write_bytes(changed_file.read_bytes() + b" ")
    assert (await found(tmp_path / "image")).root != first.root


async def test_honest_images_are_read_beside_hostile_ones_in_one_cache(tmp_path: Path) -> None:
    refused, read = [], []

    async def one(image: Path) -> None:
        try:
            read.append((await found(image)).root)
        except SandboxError as error:
            refused.append(error)

    async with anyio.create_task_group() as group:
        for number, make in enumerate([*LAYERS.values()][:4] * 2):
            make(tmp_path / f"hostile-{number}")
            group.start_soon(one, tmp_path / f"hostile-{number}")
            group.start_soon(
                one, Layout(env=(f"N={number}",)).folder(tmp_path / f"honest-{number}")
            )
    assert len(refused) == len({*read}) == 8
    assert sorted(cached(tmp_path)) == sorted(root.parent.name for root in read)


async def test_a_cancelled_start_ends_the_reading_of_a_bomb(tmp_path: Path) -> None:
    image = Layout(
        layers=[bytes(512)], compress=lambda data: bomb(40 << 30), config={"rootfs": None}
    ).folder(tmp_path / "image")
    with anyio.move_on_after(2) as scope:
        await _image.find(str(image), HostUser())
    assert scope.cancelled_caught
    assert cached(tmp_path) == []
    big = tmp_path / "big.tar.gz"
    big.write_bytes(bomb(40 << 30))
    with anyio.move_on_after(2) as scope:
        await _image.find(str(big), HostUser())
    assert scope.cancelled_caught
    assert cached(tmp_path) == []


PROGRAM = """
import sys
from sandboxkit import Session
print("begins", flush=True)
Session("local", image=sys.argv[1], start_timeout=float(sys.argv[2])).sandbox().exec(["true"]).result()
"""


@pytest.mark.parametrize("by", ["start_timeout", "SIGTERM", "SIGINT"])
def test_a_program_ends_that_reads_a_bomb(tmp_path: Path, by: str) -> None:
    image = Layout(
        layers=[bytes(512)], compress=lambda data: bomb(40 << 30), config={"rootfs": None}
    ).folder(tmp_path / "image")
    argv = [sys.executable, "-c", PROGRAM, str(image), "2" if by == "start_timeout" else "600"]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as program:
        try:
            if by != "start_timeout":
                until_extracting(tmp_path)
                program.send_signal(signal.Signals[by])
            program.communicate(timeout=30)
        finally:
            program.kill()
    assert program.returncode != 0
    if by != "SIGTERM":
        assert cached(tmp_path) == []


def until_extracting(tmp_path: Path) -> None:
    until = time.monotonic() + 30
    while not [*tmp_path.glob("cache/images/*/image/root/bomb")]:  # another process's doing
        assert time.monotonic() < until
        time.sleep(0.01)


async def test_what_a_killed_reading_left_is_removed_however_deep_it_is(tmp_path: Path) -> None:
    image = str(
        Layout(
            layers=[bytes(512)], compress=lambda data: bomb(40 << 30), config={"rootfs": None}
        ).folder(tmp_path / "image")
    )
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, image, "600"], stdout=subprocess.PIPE
    ) as program:
        await anyio.to_thread.run_sync(until_extracting, tmp_path)
        program.kill()
    (left,) = [name for name in cached(tmp_path) if name.startswith(".extracting")]
    nest(tmp_path / "cache/images" / left, 3000)
    other = await found(Layout().folder(tmp_path / "honest"))
    assert cached(tmp_path) == [other.root.parent.name]


def nest(folder: Path, depth: int) -> None:
    """Make folders within folders, whose path is longer than the system's."""
    at = os.open(folder, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir("d" * 10, dir_fd=at)
        inner = os.open("d" * 10, os.O_RDONLY, dir_fd=at)
        os.close(at)
        at = inner
    os.close(os.open("file", os.O_CREAT | os.O_WRONLY, 0, dir_fd=at))
    os.fchmod(at, 0)
    os.close(at)


def test_a_tree_is_removed_whatever_it_has_and_nothing_beside_it(tmp_path: Path) -> None:
    outside = write(tmp_path / "outside", {"file": b"x"})
    folder = tmp_path / "tree"
    folder.mkdir()
    nest(folder, 3000)
    (folder / "link").symlink_to(outside)
    (folder / "loop").symlink_to(".")
    os.mkfifo(folder / "fifo")
    (folder / "closed/within").mkdir(parents=True)
    (folder / "closed").chmod(0)
    remove_tree(folder)
    assert sorted(os.listdir(tmp_path)) == ["outside"]
    assert (outside / "file").read_bytes() == b"x"
    assert outside.stat().st_mode & 0o777 == 0o755
    remove_tree(folder)


async def test_a_deep_tree_of_a_sandbox_leaves_no_partial_snapshot(
    provider: LocalProvider, state: Path
) -> None:
    code = "import os\nfor _ in range({}):\n os.mkdir('d' * 100); os.chdir('d' * 100)"
    async with Session(provider) as session, session.sandbox() as sandbox:
        await sandbox.exec(["python3", "-c", code.format(190)], check=True)
        snapshot = await sandbox.snapshot()
        await sandbox.exec(["python3", "-c", code.format(1200)], cwd="/tmp", check=True)
        with pytest.raises(SandboxError, match="folders"):
            await sandbox.snapshot()
        assert os.listdir(state / "snapshots") == [snapshot.id]
        await snapshot.delete()
        assert os.listdir(state / "snapshots") == []
    (state / "snapshots").rmdir()


async def test_the_variables_of_an_image_that_are_accepted_reach_the_sandbox(
    provider: LocalProvider, tmp_path: Path, layer: bytes
) -> None:
    env = ["EMPTY=", "EQUALS=a=b", "LINES=a\nb", "TEXT=é", f"LONG={'x' * 100_000}"]
    path = Layout([layer], env=env).folder(tmp_path / "image")
    box = await make(provider, image=str(path))
    run = await box.sh('echo "$EQUALS,$LINES,$TEXT,${#LONG},${EMPTY-unset}"')
    assert run.stdout == "a=b,a\nb,é,100000,\n", run.stderr


@pytest.mark.skipif(os.geteuid() != 0, reason="root starts a program as another user")
async def test_an_ordinary_user_is_refused_hostile_images_and_gets_honest_ones(
    tmp_path: Path, state: Path, layer: bytes
) -> None:
    chosen = [
        "a layer that is a link to a private file",
        "Env with a NUL",
        "a layer that is a FIFO",
        "an index that names itself",
    ]
    chosen += ["a deep file before a bad name", "a layer of docker save in the parent"]
    folder = state / "images"
    folder.mkdir(parents=True)
    for number, name in enumerate(chosen):
        HOSTILE[name](folder / str(number))
    docker_save(folder / "honest", [layer])
    subprocess.run(["chmod", "-R", "a+rX", folder], check=True)
    (folder / "private.tar").write_bytes(tar([(member("canary"), CANARY)]))
    out = await as_ordinary_user(
        f"""
os.environ["SANDBOXKIT_CACHE_DIR"] = os.environ["SANDBOXKIT_STATE_DIR"] + "/cache"
for number in range({len(chosen)}):
    try:
        await provider.create(SandboxSpec(image=f"{folder}/{{number}}"))
    except (ImageNotFoundError, SandboxStartError):
        print("refused")
sandbox_id = await provider.create(SandboxSpec(image="{folder}/honest"))
await provider.exec(sandbox_id, Command(("sh", "-c", "cat /etc/kept; echo $FROM_IMAGE")), output)
print(texts["stdout"].split(), len(os.listdir(os.environ["SANDBOXKIT_CACHE_DIR"] + "/images")))
await provider.delete(sandbox_id)
await provider.aclose()
""",
        state,
    )
    assert out.splitlines() == ["refused"] * len(chosen) + ["[b'kept', b'yes'] 1"]
    remove_tree(state)


def scalars() -> st.SearchStrategy[Any]:
    text = st.one_of(
        st.text(max_size=8), st.sampled_from([*HOSTILE_NAMES, "A=\0--share-net", "\ud800"])
    )
    return st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), text)


HOSTILE_NAMES = [
    "", ".", "..", "/", "../private.tar", "a/../../private.tar", "etc", "etc/kept", "etc/.wh.kept", ".wh..wh..opq", "l", "l/x", "l/l",
    "usr/bin", "bin/x", "/etc/passwd", "blobs/sha256", "index.json", "manifest.json", "../../../../../../canary", "d/" * 300 + "x", "x" * 256,
]  # fmt: skip
values = st.recursive(
    st.deferred(scalars),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(
            st.sampled_from(["digest", "config", "Env", "layers", "x"]), inner, max_size=3
        ),
    ),
    max_leaves=6,
)
KINDS = [
    tarfile.REGTYPE,
    tarfile.DIRTYPE,
    tarfile.SYMTYPE,
    tarfile.LNKTYPE,
    tarfile.CHRTYPE,
    tarfile.FIFOTYPE,
    tarfile.CONTTYPE,
    b"Z",
]
layer_members = st.lists(
    st.tuples(st.sampled_from(HOSTILE_NAMES), st.sampled_from(KINDS), st.sampled_from(HOSTILE_NAMES), st.binary(max_size=20), st.integers(0, 0o7777)),
    max_size=8,
)  # fmt: skip


def nodes(value: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths of all fields of a document."""
    items = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    return [at, *(path for key, inner in items for path in nodes(inner, (*at, key)))]


@dataclass(frozen=True)
class Mutation:
    """What a stranger changed in an honest layout."""

    fields: list[tuple[str, int, Any]]
    layers: list[list[tuple[str, bytes, str, bytes, int]]]
    damage: list[tuple[int, int, int]]
    links: list[tuple[int, str]]
    form: str

    def make(self, path: Path) -> Path:
        def change(name: str, value: Any) -> Any:
            for which, number, to in self.fields:
                if which == name:
                    paths = nodes(value)
                    at = paths[number % len(paths)]
                    value = changed(name, *at, to=copy.deepcopy(to))(name, value)
            return value

        layers = [HONEST]
        for members in self.layers:
            made = [(member(name, kind, link, mode=mode), data if kind in (tarfile.REGTYPE, tarfile.CONTTYPE) else b"") for name, kind, link, data, mode in members]  # fmt: skip
            layers.append(tar(made))
        files = Layout(layers, change=change).files()
        if self.form == "saved":
            files = saved({f"{n}/layer.tar": each for n, each in enumerate(layers)})
            (manifest,) = json.loads(files["manifest.json"])
            files["manifest.json"] = json.dumps([change("manifest", manifest)]).encode()
        for which, where, byte in self.damage:
            name = sorted(files)[which % len(files)]
            data = bytearray(files[name])
            data[where % len(data) : where % len(data) + 1] = bytes([byte])
            files[name] = bytes(data)
        if self.form != "folder":
            links = [
                member(sorted(files)[which % len(files)], tarfile.SYMTYPE, to)
                for which, to in self.links
            ]
            return in_archive(path, files, *links)
        write(path, files)
        for which, to in self.links:
            place = path / sorted(files)[which % len(files)]
            place.unlink()
            with contextlib.suppress(FileNotFoundError, OSError):
                place.symlink_to(to)
        return path


mutations = st.builds(
    Mutation,
    st.lists(
        st.tuples(st.sampled_from(["config", "manifest", "index"]), st.integers(0, 60), values),
        max_size=3,
    ),
    st.lists(layer_members, max_size=3),
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 5000), st.integers(0, 255)), max_size=2),
    st.lists(st.tuples(st.integers(0, 9), st.sampled_from(HOSTILE_NAMES)), max_size=1),
    st.sampled_from(["folder", "archive", "saved"]),
)


def read_mutation(folder: Path, mutation: Mutation) -> bool:
    """Read a layout; return whether it was accepted. What is outside of it stays as it is and is never shown."""
    shutil.rmtree(folder, ignore_errors=True)
    outside = {"canary": CANARY, "private.tar": tar([(member("canary"), CANARY)])}
    write(folder, outside)
    image = mutation.make(folder / "image")
    started, accepted = time.monotonic(), True
    try:
        found_image = anyio.run(found, image)
        kept = [found_image.root.parent.name]
        assert all(
            isinstance(each, str) and "\0" not in each
            for pair in found_image.env.items()
            for each in pair
        )
    except (ImageNotFoundError, SandboxStartError):
        kept, accepted = [], False
    assert time.monotonic() - started < 10
    assert cached(folder) == kept
    assert not holds_the_canary(folder / "cache")
    assert sorted({*os.listdir(folder)} - {"cache"}) == ["canary", "image", "private.tar"]
    assert {name: (folder / name).read_bytes() for name in outside} == outside
    return accepted


def fuzz(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: settings) -> int:
    """Read mutated layouts; return how many were accepted."""
    accepted = 0
    monkeypatch.setenv("SANDBOXKIT_CACHE_DIR", str(tmp_path / "fuzz/cache"))

    @settings(more, suppress_health_check=list(HealthCheck), database=None)
    @given(mutations)
    def each(mutation: Mutation) -> None:
        nonlocal accepted
        accepted += read_mutation(tmp_path / "fuzz", mutation)

    each()
    remove_tree(tmp_path / "fuzz")
    return accepted


def test_a_layout_that_was_changed_anywhere_is_read_or_refused_and_shows_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert fuzz(tmp_path, monkeypatch, settings(max_examples=100)) > 0


@pytest.mark.nightly
@pytest.mark.timeout(1200)
def test_layouts_that_were_changed_anywhere_for_ten_minutes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    until, rounds = time.monotonic() + FUZZ_SECONDS, 0
    while time.monotonic() < until:
        rounds += fuzz(tmp_path, monkeypatch, settings(max_examples=300, derandomize=False))
    assert rounds > 0

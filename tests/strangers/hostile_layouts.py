"""Images that are refused: bad names, documents, digests, archives and layers, each made at a path."""

import copy
import gzip
import json
import lzma
import os
import re
import socket
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.strangers.layouts import (
    HONEST,
    Layout,
    digest,
    member,
    saved,
    tar,
    tar_of,
    write,
)


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

"""Images that are refused or read, each made at a path: `layouts.json` describes most, here are those that are computed."""

import functools
import gzip
import json
import lzma
import os
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.data_here import beside
from tests.strangers import layouts
from tests.strangers.layouts import HONEST, Layout, changed, digest, member, tar, tar_of, write

GIVEN = beside(__file__, "layouts.json")
Make = Callable[[Path], object]


def described(kind: str) -> dict[str, Make]:
    return {
        name: functools.partial(layouts.build, given=given) for name, given in GIVEN[kind].items()
    }


def endless(path: Path) -> Path:
    """Indexes that name each other's files, whose digests are right only for as long as somebody can compute them."""
    files = Layout().files()
    for level in range(40):
        found = digest(files["index.json"])
        entry = {"digest": found, "size": 1}
        files["blobs/" + found.replace(":", "/")] = files["index.json"]
        files["index.json"] = json.dumps({"manifests": [entry], "level": level}).encode()
    return write(path, files)


def itself(path: Path) -> Path:
    index = json.dumps({"manifests": [{"digest": "sha256:" + "d" * 64}]}).encode()
    return write(
        path, {"oci-layout": b"{}", "index.json": index, f"blobs/sha256/{'d' * 64}": index}
    )


def repeated(pieces: list[tuple[str, int]]) -> bytes:
    return b"".join(piece.encode("latin-1") * times for piece, times in pieces)


def raw(name: str, kind: bytes, size: int, data: bytes = b"", *, base256: bool = False) -> bytes:
    """A member of a tar archive with any size in its header."""
    block = bytearray(member(name, kind).tobuf(tarfile.USTAR_FORMAT))
    field = b"%011o\0" % size if not base256 else size.to_bytes(12, "big", signed=True)
    block[124:136] = field if not base256 else bytes([0xFF if size < 0 else 0x80]) + field[1:]
    block[148:156] = b"        "
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block) + data + bytes(-len(data) % 512)


def bomb(size: int) -> bytes:
    piece = gzip.compress(bytes(1 << 24), 9)
    return gzip.compress(raw("bomb", tarfile.REGTYPE, size, base256=True)) + piece * (size >> 24)


WRONG: list[Any] = [[], "text", 7, True, None]


def values() -> Iterator[tuple[tuple[Any, ...], Any]]:
    """Fields of documents, and values that they cannot have."""
    for which in ("config", "manifest", "index"):
        yield from (((which,), value) for value in WRONG)
    for at in map(tuple, GIVEN["fields"]):
        is_object = at[-1] in (0, "config", "rootfs", "platform")
        wrong: list[Any] = [7, True, "text" if is_object else {"a": []}, [[]]]
        yield from ((at, value) for value in wrong)


# Any: a field of a layout.
def layout(**given: Any) -> Make:
    return lambda path: Layout(**given).folder(path)


def document(data: bytes) -> Make:
    return layout(change=changed("config", to=data))


def content(make: Callable[[], bytes]) -> Make:
    return lambda path: path.write_bytes(make())


def layer(*members: Any) -> Make:
    return lambda path: Layout([HONEST, tar(members)]).folder(path)


def raw_layer(make: Callable[[], bytes]) -> Make:
    return lambda path: Layout([HONEST, make()]).folder(path)


NAMES = described("names") | {
    "a long layer's name": lambda path: layouts.build(path, {"saved": {"Layers": ["x" * 5000]}}),
    "an index that names itself": itself,
    "an index in 40 others": endless,
}
DOCUMENTS = described("documents") | {
    f"{'.'.join(map(str, at))} is {json.dumps(value)}": layout(change=changed(*at, to=value))
    for at, value in values()
}
DOCUMENTS |= {
    "Env with a long variable": layout(env=["A=" + "x" * (128 << 10)]),
    "Env with many variables": layout(env=[f"V{n}=x" for n in range(10_000)]),
    "an Env that is long in all": layout(env=[f"V{n}={'x' * 1000}" for n in range(200)]),
    "JSON in UTF-16": document('{"config": {}}'.encode("utf-16")),
    "more layers than one can have": layout(manifest={"layers": [{"digest": digest(b"")}] * 501}),
}
DOCUMENTS |= {name: document(repeated(of)) for name, of in GIVEN["long documents"].items()}
BIG = 1 << 33
QUADRATIC = b"2 " * (500 << 10) + b"=\n"


def headers_of_headers() -> bytes:
    return raw("x", tarfile.XHDTYPE, 12, b"12 path=a/b\n") * 5000 + tar([])


def quadratic() -> bytes:
    return raw("x", tarfile.XHDTYPE, len(QUADRATIC), QUADRATIC)


def negative(kind: bytes = tarfile.REGTYPE, size: int = -1024) -> bytes:
    return raw("x", kind, size, base256=True) + tar([])


def sparse_file(kind: bytes) -> Make:
    def make(path: Path) -> None:
        path.write_bytes(raw("x", kind, BIG, base256=True))
        os.truncate(path, BIG + 10240)

    return make


ARCHIVES = described("archives") | {
    "an empty file": content(bytes),
    "an archive that ends": content(lambda: tar_of(Layout().files())[:1500]),
    "gzip that ends": content(lambda: gzip.compress(tar_of(Layout().files()))[:500]),
    "xz": content(lambda: lzma.compress(tar_of(Layout().files()))),
    "a negative size": content(negative),
    "a negative size of a sparse file": content(lambda: negative(tarfile.GNUTYPE_SPARSE, -512)),
    "a header of 8 GiB": sparse_file(tarfile.XHDTYPE),
    "a long name of 8 GiB": sparse_file(tarfile.GNUTYPE_LONGNAME),
    "a header that takes quadratic time": content(quadratic),
    "headers of headers": content(headers_of_headers),
    "many members": content(lambda: tar(member(f"{n}") for n in range(10_001))),
}
ARCHIVES |= {
    name: content(functools.partial(repeated, of)) for name, of in GIVEN["no archives"].items()
}


def deep(depth: int) -> str:
    return "d/" * depth + "file"


def sparse_member(size: int) -> bytes:
    """A member in GNU's old format for sparse files, without any data."""
    block = bytearray(raw("sparse", tarfile.GNUTYPE_SPARSE, 0))
    block[483:495] = bytes([0x80]) + size.to_bytes(11, "big")
    block[148:156] = b"        "
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block) + bytes(1024)


LINKS = [
    each
    for n in range(6)
    for each in (
        member(f"{f'l{n - 1}/' if n else ''}{'d/' * 60}e", tarfile.DIRTYPE),
        member(f"l{n}", tarfile.SYMTYPE, "/".join(["d/" * 60 + "e"] * (n + 1)).replace("//", "/")),
    )
]
LAYERS: dict[str, Make] = {
    "a deep file": layer(member(deep(1200))),
    "a deep file before a bad name": layer(member(deep(1200)), member("../bad")),
    "a file that links make deep": layer(*LINKS),
    "a path that is longer than the system's": layer(member("/".join(["x" * 250] * 20))),
    "a name that is longer than the system's": layer(member("x" * 300)),
    "a name with a NUL": raw_layer(
        lambda: raw("x", tarfile.XHDTYPE, 13, b"13 path=a\0bc\n") + tar([member("y")])
    ),
    "a link with a target that is too long": layer(member("l", tarfile.SYMTYPE, "x" * 5000)),
    "a file of 1 TiB": raw_layer(lambda: raw("big", tarfile.REGTYPE, 1 << 40, base256=True)),
    "a sparse file of 1 TiB": raw_layer(lambda: sparse_member(1 << 40)),
    "a file that ends": raw_layer(lambda: raw("big", tarfile.REGTYPE, 5000, b"x" * 512)),
    "a negative size in a layer": raw_layer(negative),
    "a header of 8 GiB in a layer": raw_layer(
        lambda: raw("x", tarfile.XHDTYPE, BIG, bytes(1 << 20), base256=True)
    ),
    "a header of a layer that takes quadratic time": raw_layer(quadratic),
    "headers of headers in a layer": raw_layer(headers_of_headers),
    "a layer that is no archive": layout(layers=[b"text " * 1000]),
    **described("layers"),
}
HOSTILE = NAMES | DOCUMENTS | described("digests") | ARCHIVES | LAYERS


DOT_SLASH = [(member(f"./{name}"), data) for name, data in Layout().files().items()]
OLD_SAVE = [
    (member("a/layer.tar"), HONEST),
    member("b/layer.tar", tarfile.SYMTYPE, "../a/layer.tar"),
    *(
        (member(name), data)
        for name, data in layouts.saved({"a/layer.tar": HONEST, "b/layer.tar": b""}).items()
        if "layer" not in name
    ),
]
NEW_SAVE = Layout(compress=bytes).files()
ENTRY: dict[str, Any] = {"Layers": [f"blobs/sha256/{digest(HONEST)[7:]}"]}
ENTRY["Config"] = next(n for n, data in NEW_SAVE.items() if data.startswith(b'{"arch'))
NEW_SAVE["manifest.json"] = json.dumps([ENTRY]).encode()


def nested(path: Path) -> Path:
    files = Layout().files()
    entry = {"digest": digest(files["index.json"])}
    files["blobs/" + entry["digest"].replace(":", "/")] = files["index.json"]
    return write(path, files | {"index.json": json.dumps({"manifests": [entry]}).encode()})


def others(name: str, index: Any) -> Any:
    if name != "index":
        return index
    strange = [
        {"digest": digest(b""), "platform": {"architecture": each}} for each in ("s390x", "unknown")
    ]
    return {"manifests": [*strange, *index["manifests"]]}


def no_platform(name: str, value: Any) -> Any:
    found = value["manifests"][0]["digest"] if name == "index" else ""
    return {"manifests": [{"digest": found, "platform": None}]} if found else value


OTHER_TOOLS = layouts.saved(
    {f"{'c' * 64}.tar.gz": gzip.compress(HONEST)},
    name=f"sha256:{digest(json.dumps({'config': {'Env': None}}).encode())[7:]}",
)
LONG = tar([(member("usr/" + "x" * 200), b"x"), member("etc/kept")], tarfile.GNU_FORMAT)
ATTRIBUTES = {"SCHILY.xattr.security.capability": "x" * 20, "mtime": "1.5"}
HONEST_SHAPES: dict[str, Make] = described("honest") | {
    "a layout in an archive of tar -c .": content(
        lambda: tar([member(".", tarfile.DIRTYPE), *DOT_SLASH])
    ),
    "an index in an index": nested,
    "an index with other machines and attestations": layout(change=others),
    "a manifest without a platform": layout(change=no_platform),
    "docker save, an old one": content(lambda: tar(OLD_SAVE)),
    "docker save, a new one": content(lambda: tar_of(NEW_SAVE)),
    "docker save, compressed": content(lambda: gzip.compress(tar(OLD_SAVE))),
    "docker save, unpacked": lambda path: write(path, NEW_SAVE),
    "docker save of other tools": content(lambda: tar_of(OTHER_TOOLS)),
    "GNU's format": layout(layers=[LONG, HONEST]),
    "long names": layer(member("/".join(["x" * 100] * 30))),
    "attributes": layer(member("x", pax_headers=ATTRIBUTES)),
    "a global header": raw_layer(
        lambda: raw("g", tarfile.XGLTYPE, 12, b"12 comment=\n") + tar([member("x")])
    ),
    "many folders within folders": layer(member(deep(200))),
}

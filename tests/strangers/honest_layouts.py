"""Images that are read, in all forms that tools write."""

import bz2
import gzip
import json
import os
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.strangers.hostile_layouts import changed, deep, first_blob, raw
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

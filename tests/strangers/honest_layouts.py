"""Images that are read, in all forms that tools write; `layouts.json` describes most of them."""

import gzip
import json
import tarfile
from pathlib import Path
from typing import Any

from tests.strangers.hostile_layouts import (
    Make,
    content,
    deep,
    described,
    layer,
    layout,
    raw,
    raw_layer,
)
from tests.strangers.layouts import HONEST, Layout, digest, member, saved, tar, tar_of, write


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


OTHER_TOOLS = saved(
    {f"{'c' * 64}.tar.gz": gzip.compress(HONEST)},
    name=f"sha256:{digest(json.dumps({'config': {'Env': None}}).encode())[7:]}",
)
LONG = tar([(member("usr/" + "x" * 200), b"x"), member("etc/kept")], tarfile.GNU_FORMAT)
ATTRIBUTES = {"SCHILY.xattr.security.capability": "x" * 20, "mtime": "1.5"}
HONEST_SHAPES: dict[str, Make] = described("honest") | {
    "a layout in an archive of tar -c .": content(lambda: tar(dot_slash(Layout().files()))),
    "an index in an index": nested,
    "an index with other machines and attestations": layout(
        change=lambda name, value: others(value) if name == "index" else value
    ),
    "a manifest without a platform": layout(
        change=lambda name, value: (
            {"manifests": [{"digest": value["manifests"][0]["digest"], "platform": None}]}
            if name == "index"
            else value
        )
    ),
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

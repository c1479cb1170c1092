"""Builds images as a stranger may hand them over, honest ones and others.

`layouts.json` describes most of them, by kind and name: the fields of a Layout, the files of `docker save`, and
what is put in the place of a file.
"""

import bz2
import copy
import gzip
import hashlib
import io
import json
import lzma
import os
import tarfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.strangers.tasks import put

MACHINE = {"x86_64": "amd64", "aarch64": "arm64"}[os.uname().machine]
CANARY = b"the content of a private file\n"


def member(name: str, kind: bytes = tarfile.REGTYPE, to: str = "", **more: Any) -> tarfile.TarInfo:
    """A member of a tar archive; `more` are further attributes."""
    made = tarfile.TarInfo(name)
    made.type, made.linkname, made.mode = kind, to, 0o755
    for attribute, value in more.items():
        setattr(made, attribute, value)
    return made


def tar(members: Iterable[Any], format: int = tarfile.PAX_FORMAT) -> bytes:
    """A tar archive; a member may come with its content."""
    content = io.BytesIO()
    with tarfile.open(fileobj=content, mode="w", format=format) as archive:
        for each in members:
            info, data = each if isinstance(each, tuple) else (each, b"")
            if data:
                info.size = len(data)
            archive.addfile(info, io.BytesIO(data) if data else None)
    return content.getvalue()


def tar_of(files: Mapping[str, bytes]) -> bytes:
    return tar((member(name), data) for name, data in files.items())


def digest(data: bytes, algorithm: str = "sha256") -> str:
    return f"{algorithm}:{hashlib.new(algorithm, data).hexdigest()}"


HONEST = tar(
    [
        member("usr", tarfile.DIRTYPE),
        member("usr/bin", tarfile.DIRTYPE),
        member("bin", tarfile.SYMTYPE, "usr/bin"),
        (member("usr/bin/program"), b"program\n"),
        member("usr/bin/again", tarfile.LNKTYPE, "usr/bin/program"),
        (member("etc/kept"), b"kept\n"),
    ]
)


@dataclass
class Layout:
    """An OCI layout. What is changed before `files` gets right digests, what is changed in its result has wrong ones."""

    layers: Sequence[bytes] = (HONEST,)
    env: Any = ("FROM_IMAGE=yes",)
    compress: Callable[[bytes], bytes] = gzip.compress
    algorithm: str = "sha256"
    config: dict[str, Any] = field(default_factory=dict)
    manifest: dict[str, Any] = field(default_factory=dict)
    index: dict[str, Any] = field(default_factory=dict)
    change: Callable[[str, Any], Any] = lambda name, value: value
    """Changes a document: "config", "manifest" or "index"."""

    def files(self) -> dict[str, bytes]:
        files = {"oci-layout": b'{"imageLayoutVersion": "1.0.0"}'}

        def blob(data: bytes) -> dict[str, Any]:
            found = digest(data, self.algorithm)
            files["blobs/" + found.replace(":", "/")] = data
            return {"digest": found, "size": len(data), "mediaType": "application/vnd.oci"}

        def document(name: str, value: Any) -> bytes:
            changed = self.change(name, value)
            return changed if isinstance(changed, bytes) else json.dumps(changed).encode()

        rootfs = {"type": "layers", "diff_ids": [digest(each) for each in self.layers]}
        env = list(self.env) if isinstance(self.env, tuple) else self.env
        config = {"architecture": MACHINE, "config": {"Env": env}, "rootfs": rootfs} | self.config
        manifest = {
            "schemaVersion": 2,
            "config": blob(document("config", config)),
            "layers": [blob(self.compress(each)) for each in self.layers],
        } | self.manifest
        entry = blob(document("manifest", manifest)) | {"platform": {"architecture": MACHINE}}
        index = {"schemaVersion": 2, "manifests": [entry]} | self.index
        files["index.json"] = document("index", index)
        return files

    def folder(self, path: Path) -> Path:
        return write(path, self.files())


def write(path: Path, files: Mapping[str, bytes]) -> Path:
    for name, data in files.items():
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_bytes(data)
    return path


def saved(
    layers: Mapping[str, bytes], config: Any = None, name: str | None = None, **manifest: Any
) -> dict[str, bytes]:
    """The files of `docker save`; the configuration is named by its digest unless `name` is given."""
    data = json.dumps({"config": {"Env": None}} if config is None else config).encode()
    name = name or f"{digest(data)[7:]}.json"
    described = [{"Config": name, "RepoTags": None, "Layers": [*layers]} | manifest]
    return {name: data, **layers, "manifest.json": json.dumps(described).encode()}


def changed(which: str, *path: Any, to: Any) -> Callable[[str, Any], Any]:
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


def _blobs(path: Path) -> dict[str, Path]:
    def of(entry: Any) -> Path:
        return Path(path / "blobs" / entry["digest"].replace(":", "/"))

    manifest = of(json.loads((path / "index.json").read_bytes())["manifests"][0])
    described = json.loads(manifest.read_bytes())
    return {
        "MANIFEST": manifest,
        "CONFIG": of(described["config"]),
        "LAYER": of(described["layers"][0]),
    }


COMPRESSIONS: dict[str, Callable[[bytes], bytes]] = {
    "none": bytes,
    "bzip2": bz2.compress,
    "two gzips": lambda data: gzip.compress(data[:700]) + gzip.compress(data[700:]),
    "xz": lzma.compress,
    "zstd": lambda data: b"\x28\xb5\x2f\xfd" + data,
    "gzip and more": lambda data: gzip.compress(data) + b"more",
}
ARCHIVES: dict[str, Callable[[bytes], bytes]] = {
    "archive": bytes,
    "gzip archive": gzip.compress,
    "bzip2 archive": bz2.compress,
}


def build(path: Path, given: dict[str, Any]) -> None:
    """Make an image from its description in `layouts.json`."""
    text = json.dumps(given).replace("PARENT", str(path.parent))
    text = text.replace('"EMPTY"', f'"{digest(b"")}"').replace('"HONEST"', f'"{digest(HONEST)}"')
    given = json.loads(text)
    form, replaced = given.pop("as", "folder"), given.pop("replaced", {})
    files = _files(given, form)
    if form != "folder":
        members = [_member(*each) for each in given.get("members", ())]
        data = tar([*((member(name), data) for name, data in files.items()), *members])
        path.write_bytes(ARCHIVES[form](data))
        return
    write(path, files)
    blobs: dict[str, Any] = _blobs(path) if replaced else {}
    for name, how in replaced.items():
        _replace(blobs.get(name, path / name), path, *how)


def _files(given: dict[str, Any], form: str) -> dict[str, bytes]:
    written = {name: text.encode("latin-1") for name, text in given.pop("write", {}).items()}
    plain = {"oci-layout": b"{}"} if form == "folder" else {}
    if "saved" in given:
        layers = dict.fromkeys(given.get("files", ["0/layer.tar"]), HONEST)
        return plain | saved(layers, **given["saved"]) | written
    if "files" in given:
        return written
    given["compress"] = COMPRESSIONS.get(given.get("compress", ""), gzip.compress)
    if "layer" in given:
        given["layers"] = [HONEST, tar([_member(*each) for each in given.pop("layer")])]
    if "document" in given:
        given["change"] = changed("config", to=given.pop("document").encode("latin-1"))
    elif "change" in given:
        at, to = given["change"]
        given["change"] = changed(*at, to=to)
    return Layout(**given).files()


def _member(name: str, kind: str = "REG", link: str = "") -> tarfile.TarInfo:
    return member(name, getattr(tarfile, f"{kind}TYPE"), link)


def _replace(file: Path, layout: Path, how: str, what: str = "") -> None:
    if how == "moved":
        file.rename(layout.parent / "elsewhere")
        file.symlink_to(layout.parent / "elsewhere")
        return
    data = file.read_bytes() if file.exists() else b""
    if how == "itself, linked":
        os.link(file, layout.parent / "other")
        return
    file.unlink(missing_ok=True)
    if how == "gzip of an archive with another file":
        file.write_bytes(gzip.compress(tar_of({"other": b"x"})))
    elif how == "itself and zeros":
        file.write_bytes(data + bytes(512))
    elif how != "nothing":
        put(file.parent, layout, how, file.name, file.name if what == "ITSELF" else what)

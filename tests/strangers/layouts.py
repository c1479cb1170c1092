"""Builds images as a stranger may hand them over, honest ones and others."""

import gzip
import hashlib
import io
import json
import os
import tarfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

MACHINE = {"x86_64": "amd64", "aarch64": "arm64"}[os.uname().machine]
CANARY = b"the content of a private file\n"


def member(
    name: str, kind: bytes = tarfile.REGTYPE, link: str = "", **more: Any
) -> tarfile.TarInfo:
    """A member of a tar archive; `more` are further attributes."""
    made = tarfile.TarInfo(name)
    made.type, made.linkname, made.mode = kind, link, 0o755
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

    def folder(self, path: Path, **more: bytes) -> Path:
        return write(path, self.files() | more)

    def archive(self, path: Path) -> Path:
        path.write_bytes(tar_of(self.files()))
        return path


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

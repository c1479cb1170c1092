"""image.py NAME OUT [PATH=FILE...]: write an image of one layer with these programs, like `docker save`.

The first program becomes the image's entrypoint. Without programs the image is empty.
"""

import hashlib
import io
import json
import sys
import tarfile
from pathlib import Path


def archive(files: dict[str, bytes], *, mode: int) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, data in files.items():
            member = tarfile.TarInfo(name.lstrip("/"))
            member.size, member.mode = len(data), mode
            tar.addfile(member, io.BytesIO(data))
    return buffer.getvalue()


def main(name: str, out: str, *programs: str) -> None:
    sources = dict(program.split("=", 1) for program in programs)
    layer = archive({path: Path(file).read_bytes() for path, file in sources.items()}, mode=0o755)
    config = {
        "architecture": "amd64",
        "os": "linux",
        "config": {"Entrypoint": list(sources)[:1]},
        "rootfs": {"type": "layers", "diff_ids": ["sha256:" + hashlib.sha256(layer).hexdigest()]},
    }
    written = json.dumps(config).encode()
    described = hashlib.sha256(written).hexdigest() + ".json"
    manifest = [{"Config": described, "RepoTags": [name], "Layers": ["layer.tar"]}]
    parts = {"layer.tar": layer, described: written, "manifest.json": json.dumps(manifest).encode()}
    Path(out).write_bytes(archive(parts, mode=0o644))


if __name__ == "__main__":
    main(*sys.argv[1:])

"""An image registry on loopback with one small image, as much of the protocol as a pull needs."""

import base64
import gzip
import hashlib
import io
import json
import tarfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Self

_MANIFEST = "application/vnd.docker.distribution.manifest.v2+json"


def _digest(data: bytes) -> str:
    return "sha256:" + hashlib.sha256(data).hexdigest()


class Registry:
    """Serves `image`, to `me` alone if there is a password; answers 404 for every other name."""

    def __init__(self, password: str = "") -> None:
        allowed = "Basic " + base64.b64encode(f"me:{password}".encode()).decode()
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w") as tar:
            member = tarfile.TarInfo("hello.txt")
            member.size = 5
            tar.addfile(member, io.BytesIO(b"hello"))
        layer = gzip.compress(buffer.getvalue(), mtime=0)
        plain, kinds = buffer.getvalue(), "application/vnd.docker"
        rootfs = {"type": "layers", "diff_ids": [_digest(plain)]}
        settings = {"User": "1234", "Labels": {"from": "image"}}
        made = {"architecture": "amd64", "os": "linux", "config": settings, "rootfs": rootfs}
        config = json.dumps(made).encode()

        def described(data: bytes, kind: str) -> dict[str, object]:
            media = f"{kinds}.{kind}"
            return {"mediaType": media, "size": len(data), "digest": _digest(data)}

        described_config = described(config, "container.image.v1+json")
        layers = [described(layer, "image.rootfs.diff.tar.gzip")]
        form = {"schemaVersion": 2, "mediaType": _MANIFEST}
        manifest = json.dumps({**form, "config": described_config, "layers": layers}).encode()
        pages = {
            "/v2/": (b"{}", "application/json"),
            "/v2/hello/manifests/1": (manifest, _MANIFEST),
            f"/v2/hello/manifests/{_digest(manifest)}": (manifest, _MANIFEST),
            f"/v2/hello/blobs/{_digest(layer)}": (layer, "application/octet-stream"),
            f"/v2/hello/blobs/{_digest(config)}": (config, "application/octet-stream"),
        }

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                data, kind = pages.get(self.path, (b"", ""))
                if password and self.headers["Authorization"] != allowed:
                    data, kind = b"", ""
                    self.send_response(401)
                    self.send_header("WWW-Authenticate", 'Basic realm="images"')
                else:
                    self.send_response(200 if kind else 404)
                self.send_header("Content-Type", kind or "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.send_header("Docker-Content-Digest", _digest(data))
                self.end_headers()
                if self.command == "GET":
                    self.wfile.write(data)

            do_HEAD = do_GET

            def log_message(self, format: str, *args: object) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.host = f"127.0.0.1:{self._server.server_address[1]}"
        self.image = f"{self.host}/hello:1"

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._server.shutdown()
        self._server.server_close()

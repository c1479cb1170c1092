"""A registry of a test's own (Debian's docker-registry), reached by nodes on this machine's network."""

import base64
import json
import re
import socket
import subprocess
from pathlib import Path
from typing import Any, Self
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from tests.components import require_program
from tests.kubernetes.cluster import STATE, wait_until

_LOGIN = base64.b64encode(b"tester:sesame").decode()
_HASH = "tester:$2b$04$abcdefghijklmnopqrstuuinwY/tkBVrn3xrxQI/TgnMHhkvl85RW\n"
_ANY = "application/vnd.oci.image.manifest.v1+json"


class Registry:
    """A registry on a loopback port, whose only user has to log in unless it is `public`. Its files are in a folder."""

    def __init__(self, folder: Path, *, public: bool = False) -> None:
        require_program("docker-registry", "KUBERNETES")
        self._folder, self._public = folder, public
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.host = f"localhost:{free.getsockname()[1]}"
        self.repository = f"{self.host}/team/snapshots"
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        (self._folder / "users").write_text(_HASH)
        (self._folder / "docker").mkdir()
        self.log_in("tester:sesame")
        self.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self.stop()

    def push(self, archive: Path, name: str) -> str:
        """Push an archive of `docker save` with skopeo, and return the name of the image."""
        require_program("skopeo", "KUBERNETES")
        login = f"--authfile={self._folder / 'docker' / 'config.json'}"
        copy = ["skopeo", "--insecure-policy", "copy", "--quiet", "--dest-tls-verify=false", login]
        image = f"{self.host}/{name}"
        subprocess.run([*copy, f"docker-archive:{archive}", f"docker://{image}"], check=True)
        return image

    def log_in(self, user: str) -> Path:
        """Store USER:PASSWORD as `docker login` does, and return the folder of docker's configuration."""
        folder = self._folder / "docker"
        auths = {self.host: {"auth": base64.b64encode(user.encode()).decode()}}
        (folder / "config.json").write_text(json.dumps({"auths": auths}))
        return folder

    def start(self, *, deletions: bool = True) -> None:
        """Start the registry with the files that it had."""
        files = {"rootdirectory": str(self._folder / "files")}
        storage = {"filesystem": files, "delete": {"enabled": deletions}}
        http = {"addr": self.host.replace("localhost", "127.0.0.1"), "relativeurls": True}
        config: dict[str, Any] = {"version": "0.1", "storage": storage, "http": http}
        if not self._public:
            users = {"realm": "tests", "path": str(self._folder / "users")}
            config["auth"] = {"htpasswd": users}
        path = self._folder / "config.yml"
        path.write_text(json.dumps(config))  # JSON is YAML
        with (self._folder / "log").open("ab") as log:
            argv = ["docker-registry", "serve", str(path)]
            self._process = subprocess.Popen(argv, stdout=log, stderr=log, cwd=self._folder)
        wait_until(lambda: self.status("") == 200, "the registry's answer")

    def stop(self) -> None:
        """End the registry; its files stay."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def status(self, path: str) -> int:
        """Return the status of a GET below /v2/; 0 if nobody listens."""
        headers = {"Authorization": f"Basic {_LOGIN}", "Accept": _ANY}
        try:
            with urlopen(Request(f"http://{self.host}/v2/{path}", headers=headers)) as answer:
                return int(answer.status)
        except HTTPError as error:
            error.close()
            return error.code
        except OSError:
            return 0

    def manifests(self) -> list[str]:
        """Return the digests of the repository's images that were not deleted."""
        root = self._folder / "files/docker/registry/v2/repositories/team/snapshots"
        found = (root / "_manifests/revisions/sha256").glob("*/link")
        return [f"sha256:{path.parent.name}" for path in found]

    def layer_pulls(self) -> int:
        """Return how many times a blob of more than 10,000 bytes was read."""
        text = (self._folder / "log").read_text()
        reads = re.findall(r'"GET /v2/team/snapshots/blobs/\S+ HTTP/1.1" 200 (\d+) ', text)
        return sum(int(size) > 10_000 for size in reads)

    def forget_pulled(self) -> None:
        """Remove what the cluster's node has pulled from here."""
        images = ["ctr", "--address", f"{STATE}/containerd/socket", "-n", "k8s.io", "images"]
        listed = subprocess.run([*images, "ls"], capture_output=True, text=True, check=True).stdout
        rows = [line.split() for line in listed.splitlines()[1:]]
        ours = {row[2] for row in rows if row[0].startswith(self.host)}
        if names := [row[0] for row in rows if row[2] in ours]:
            subprocess.run([*images, "rm", *names], stdout=subprocess.DEVNULL, check=True)

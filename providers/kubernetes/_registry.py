"""Stores archives in an OCI registry, each as an image of one file, over the registry's HTTP API.

It logs in as docker does: with the credentials of docker's configuration, or of the program that this names.
"""

import base64
import hashlib
import json
import os
import re
import shutil
import subprocess
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass
from io import BufferedReader
from pathlib import Path
from tarfile import USTAR_FORMAT, TarInfo
from typing import Any
from urllib.parse import quote

import aiohttp
import anyio
import anyio.to_thread
from yarl import URL

from sandboxkit.errors import (
    AuthenticationError,
    CapacityError,
    ConfigurationError,
    ProviderUnavailableError,
    SandboxError,
)

ARCHIVE = "archive"
"""The name of the only file in an image."""
_MANIFEST = "application/vnd.oci.image.manifest.v1+json"
_CONFIG = "application/vnd.oci.image.config.v1+json"
_LAYER = "application/vnd.oci.image.layer.v1.tar"
_ELSEWHERE = (302, 303, 307)
"""Statuses of a HEAD for a blob that the registry has, but serves elsewhere."""
_PIECE = 1 << 20
_BLOCK = 512
_REPOSITORY = re.compile(
    r"(?:(?P<scheme>https?)://)?(?P<host>(?:[a-zA-Z0-9.-]+|\[[0-9a-fA-F:]+\])(?::[0-9]+)?)"
    r"/(?P<name>[a-z0-9]+(?:[._-]+[a-z0-9]+)*(?:/[a-z0-9]+(?:[._-]+[a-z0-9]+)*)*)"
)
_LOOPBACK = re.compile(r"(localhost|127(\.[0-9]+){3}|\[::1\])(:[0-9]+)?")
_PATIENCE = 30.0
"""How long (s) a credential program may take."""
_PARAMETER = re.compile(r'(\w+)="([^"]*)"')

Body = Callable[[], AsyncIterator[bytes]]
"""Makes a request's body, once more for a request that is repeated with credentials."""


@dataclass(frozen=True, slots=True)
class ImageRepository:
    """A repository of an OCI registry."""

    url: str
    """The registry's address, such as "https://registry.example:5000"."""
    host: str
    name: str

    @classmethod
    def parse(cls, text: str) -> "ImageRepository":
        """Parse HOST[:PORT]/NAME. Without a scheme it is http for loopback addresses, else https.

        Raises ConfigurationError.
        """
        match = _REPOSITORY.fullmatch(text)
        if match is None:
            raise ConfigurationError(
                f"snapshot_registry={text!r}: give a repository such as 'registry.example:5000/sandboxkit'"
            )
        plain = "http" if _LOOPBACK.fullmatch(match["host"]) else "https"
        return cls(f"{match['scheme'] or plain}://{match['host']}", match["host"], match["name"])

    def image(self, digest: str) -> str:
        """Return the name by which nodes pull an image."""
        return f"{self.host}/{self.name}@{digest}"


class RegistryRefusal(Exception):
    """An error response of a registry; it becomes the `__cause__` of the typed error."""

    def __init__(self, status: int, text: str) -> None:
        self.status = status
        """The HTTP status."""
        super().__init__(f"{' '.join(text.split())[:400] or 'no explanation'} (HTTP {status})")


class DeletionRefusedError(ConfigurationError):
    """A registry is configured to delete no images."""


class ImageLayer:
    """An archive as a layer: a tar with one file, computed while it is read."""

    def __init__(self, file: BufferedReader, size: int) -> None:
        """`size` is the archive's, in bytes."""
        self._file = file
        info = TarInfo(ARCHIVE)
        info.size, info.mode = size, 0o444
        self._head = info.tobuf(USTAR_FORMAT)
        self._tail = bytes(-size % _BLOCK + 2 * _BLOCK)
        self.size = len(self._head) + size + len(self._tail)

    def digest(self) -> str:
        """Return the layer's digest; this reads the whole archive."""
        made = hashlib.sha256(self._head)
        self._file.seek(0)
        while data := self._file.read(_PIECE):
            made.update(data)
        made.update(self._tail)
        return f"sha256:{made.hexdigest()}"

    async def body(self) -> AsyncIterator[bytes]:
        """Yield the layer in pieces."""
        yield self._head
        await anyio.to_thread.run_sync(self._file.seek, 0)
        while data := await anyio.to_thread.run_sync(self._file.read, _PIECE):
            yield data
        yield self._tail


class ImageRegistry:
    """Pushes to and deletes from one repository. Use it as a context manager, on one event loop."""

    def __init__(self, repository: ImageRepository, *, timeout: float) -> None:
        """`timeout` (s) limits each response, but not the time that a layer takes."""
        self._repository, self._timeout = repository, timeout
        self._root = f"{repository.url}/v2/{repository.name}"
        self._headers: dict[str, str] = {}

    async def __aenter__(self) -> "ImageRegistry":
        self._session = aiohttp.ClientSession(
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=self._timeout),
            trust_env=True,
            cookie_jar=aiohttp.DummyCookieJar(),
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._session.close()

    async def push_blobs(
        self, layer: ImageLayer, architecture: str, annotations: Mapping[str, str]
    ) -> bytes:
        """Push a layer and the configuration of an image; return its manifest, which `push` takes."""
        digest = await anyio.to_thread.run_sync(layer.digest)
        config = _json(
            {
                "architecture": architecture,
                "os": "linux",
                "config": {},
                "rootfs": {"type": "layers", "diff_ids": [digest]},
            }
        )

        async def small() -> AsyncIterator[bytes]:
            yield config

        await self._blob(digest, layer.size, layer.body)
        await self._blob(digest_of(config), len(config), small)
        return _json(
            {
                "schemaVersion": 2,
                "mediaType": _MANIFEST,
                "config": {
                    "mediaType": _CONFIG,
                    "digest": digest_of(config),
                    "size": len(config),
                },
                "layers": [{"mediaType": _LAYER, "digest": digest, "size": layer.size}],
                "annotations": dict(annotations),
            }
        )

    async def push(self, manifest: bytes, tag: str) -> None:
        """Push an image's manifest under a tag, so that registries which remove untagged ones keep it."""

        async def body() -> AsyncIterator[bytes]:
            yield manifest

        head = {"Content-Type": _MANIFEST, "Content-Length": str(len(manifest))}
        await self._call("PUT", f"/manifests/{tag}", "store an image", headers=head, body=body)

    async def remove(self, digest: str) -> None:
        """Delete an image's manifest, if it is there; the registry collects the blobs.

        Raises DeletionRefusedError if the registry deletes no images at all.
        """
        what = "delete an image"
        try:
            await self._call("DELETE", f"/manifests/{digest}", what)
        except SandboxError as error:
            status = getattr(error.__cause__, "status", None)
            if status in (400, 403, 405):
                raise DeletionRefusedError(
                    f"the registry {self._repository.host} refuses to delete images: "
                    f"{self._repository.image(digest)} stays there; allow deletions (for Docker's registry: "
                    "storage.delete.enabled), or delete it yourself"
                ) from error.__cause__
            if status != 404:
                raise

    async def _blob(self, digest: str, size: int, body: Body) -> None:
        what = "store a layer"
        try:
            await self._call("HEAD", f"/blobs/{digest}", what)
            return
        except SandboxError as error:
            if getattr(error.__cause__, "status", None) != 404:
                raise
        begun = await self._call("POST", "/blobs/uploads/", what)
        place = str(begun.url.join(URL(begun.headers.get("Location", ""), encoded=True)))
        place += f"{'&' if '?' in place else '?'}digest={quote(digest)}"
        head = {"Content-Type": "application/octet-stream", "Content-Length": str(size)}
        await self._call("PUT", place, what, headers=head, body=body, limit=None)

    async def _call(
        self,
        method: str,
        path: str,
        what: str,
        *,
        headers: Mapping[str, str] | None = None,
        body: Body | None = None,
        limit: float | None = 0,
    ) -> aiohttp.ClientResponse:
        """Make a request, and repeat it once with credentials if the registry asks for them."""
        url = URL(path if "://" in path else self._root + path, encoded=True)
        host, again = self._repository.host, False
        try:
            while True:
                ours = self._headers if url.origin() == URL(self._repository.url) else {}
                with anyio.fail_after(self._timeout if limit == 0 else limit):
                    async with self._session.request(
                        method,
                        url,
                        headers={**ours, **(headers or {})},
                        data=body() if body else None,
                        allow_redirects=False,
                    ) as answer:
                        text = await answer.text(errors="replace")
                if answer.status < 300 or (method == "HEAD" and answer.status in _ELSEWHERE):
                    return answer
                challenge = answer.headers.get("WWW-Authenticate", "")
                if answer.status != 401 or again or not challenge:
                    refusal = RegistryRefusal(answer.status, text)
                    kind, advice = _kind(answer.status, host)
                    raise kind(f"the registry {host} cannot {what}: {refusal}{advice}") from refusal
                with anyio.fail_after(self._timeout):
                    login = await authorization(self._session, host, challenge)
                self._headers, again = {"Authorization": login}, True
        except (aiohttp.ClientError, OSError, EOFError) as error:  # TimeoutError is an OSError
            raise ProviderUnavailableError(
                f"the registry {host} cannot {what}: {error or 'no answer in time'}; check "
                "snapshot_registry, and that the registry runs"
            ) from error


def digest_of(data: bytes) -> str:
    """Return the digest by which a registry names some bytes."""
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


# Any: what JSON has.
def _json(value: dict[str, Any]) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def _kind(status: int, host: str) -> tuple[type[SandboxError], str]:
    if status in (401, 403):
        return AuthenticationError, f"; log in with: docker login {host}"
    if status in (413, 507):
        return CapacityError, ""
    if status == 429 or status >= 500:
        return ProviderUnavailableError, ""
    return ConfigurationError, "; check snapshot_registry"


async def authorization(session: aiohttp.ClientSession, host: str, challenge: str) -> str:
    """Return the Authorization header that fulfils a WWW-Authenticate header.

    Raises AuthenticationError if there are no credentials, or the registry's token service refuses them.
    """
    stored = await _credentials(host)
    basic = f"Basic {base64.b64encode(stored.encode()).decode()}" if stored else ""
    scheme, _, rest = challenge.partition(" ")
    if scheme.lower() != "bearer":
        if not basic:
            raise _refused(host, f"{_config()} has no credentials for it")
        return basic
    asked = dict(_PARAMETER.findall(rest))
    realm = asked.pop("realm", "")
    params = {key: asked[key] for key in ("service", "scope") if key in asked}
    headers = {"Authorization": basic} if basic else {}
    async with session.get(realm, params=params, headers=headers) as answer:
        text = await answer.text(errors="replace")
    if answer.status == 429 or answer.status >= 500:
        raise ProviderUnavailableError(
            f"{realm}, where the registry {host} wants a login, answers {text[:200]!r} (HTTP {answer.status})"
        )
    try:
        given = json.loads(text)
        return f"Bearer {given.get('token') or given['access_token']}"
    except (ValueError, LookupError, AttributeError) as error:
        raise _refused(host, f"{realm} answers {text[:200]!r} (HTTP {answer.status})") from error


def _config() -> Path:
    return Path(os.environ.get("DOCKER_CONFIG") or Path.home() / ".docker") / "config.json"


async def _credentials(host: str) -> str:
    """Return USER:PASSWORD from docker's configuration or its credential program; "" if it has none."""
    path = _config()
    try:
        config = json.loads(path.read_bytes())
        helper = config.get("credHelpers", {}).get(host) or config.get("credsStore")
        if helper and (found := await _from_program(f"docker-credential-{helper}", host)):
            return found
        stored = config.get("auths", {})
        entry = stored.get(host) or stored.get(f"https://{host}") or {}
        return base64.b64decode(entry.get("auth", "")).decode()
    except FileNotFoundError:
        return ""
    except (OSError, ValueError, LookupError, AttributeError, subprocess.SubprocessError) as error:
        raise ConfigurationError(
            f"the login for the registry {host} cannot be read from {path}: {error!r}; run: docker login {host}"
        ) from error


async def _from_program(program: str, host: str) -> str | None:
    """Return USER:PASSWORD from a credential program of docker's; None if it has none for the registry."""
    if shutil.which(program) is None:
        raise ValueError(f"it names {program}, which is not installed")

    def run() -> subprocess.CompletedProcess[bytes]:
        argv = [program, "get"]
        return subprocess.run(argv, input=host.encode(), capture_output=True, timeout=_PATIENCE)

    done = await anyio.to_thread.run_sync(run, abandon_on_cancel=True)
    if done.returncode != 0:
        return None
    found = json.loads(done.stdout)
    return f"{found['Username']}:{found['Secret']}"


def _refused(host: str, why: str) -> AuthenticationError:
    return AuthenticationError(
        f"the registry {host} wants a login: {why}; run: docker login {host}"
    )

"""An API server in front of the cluster's: it has the objects of agent-sandbox, the rest is the cluster's.

The cluster's own server, 1.20.2 as scripts/kube builds it, ends at the first object of a CRD: its vendored
reflect2 breaks with Debian's Go. The objects are therefore kept here, with the API's rules for them: resource
versions, merge patches, watches, and owners whose deletion in the foreground waits for what they own.
"""

import asyncio
import json
import ssl
import threading
import time
import urllib.parse
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tests.kubernetes.cluster import ApiError, Cluster

# Any: the API server's JSON.
Json = dict[str, Any]
_GROUPS = ("/apis/extensions.agents.x-k8s.io/v1beta1", "/apis/agents.x-k8s.io/v1beta1")
_FINALIZER = "foregroundDeletion"
_POLL = 0.05


class Store:
    """The custom objects; `request` is what `Cluster.request` is for the others."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self._lock = threading.RLock()
        self._objects: dict[str, Json] = {}
        """The objects by path."""
        self.events: list[tuple[int, str, str, Json]] = []
        """Version, path, type and object of each change."""
        self._version = 1000

    def request(
        self, method: str, path: str, body: Json | None = None, *, content: str = ""
    ) -> Json:
        """Ask for an object of any kind. Raises ApiError."""
        if not path.startswith(_GROUPS):
            kind = content or "application/json"
            answer: Json = self.cluster.request(method, path, body, content=kind)
            return answer
        with self._lock:
            return self._custom(method, path, json.loads(json.dumps(body)))

    def listed(self, path: str, selector: str = "") -> Json:
        """The objects of one kind with these labels."""
        wanted = [part.split("=") for part in selector.split(",") if part]
        with self._lock:
            items = [each for at, each in self._objects.items() if at.rpartition("/")[0] == path]
            metadata = {"resourceVersion": str(self._version)}
        return {"metadata": metadata, "items": [each for each in items if _has(each, wanted)]}

    def _custom(self, method: str, path: str, body: Json | None) -> Json:
        path = path.removesuffix("/status")
        if method == "POST":
            return self._posted(path, body or {})
        if path in _GROUPS:
            return {"kind": "APIResourceList", "resources": []}
        if path.count("/") == 6:
            return self.listed(path)
        if path not in self._objects:
            raise ApiError(404, "NotFound", f"{path.rpartition('/')[2]!r} not found")
        thing: Json = json.loads(json.dumps(self._objects[path]))
        metadata = thing["metadata"]
        if method == "PATCH":
            version = (body or {}).get("metadata", {}).get("resourceVersion")
            if version not in (None, metadata["resourceVersion"]):
                raise ApiError(409, "Conflict", "the object has been modified")
            return self._kept(path, _merged(thing, body), "MODIFIED")
        if method == "DELETE":
            if (body or {}).get("propagationPolicy") == "Foreground" or "/sandboxes/" in path:
                metadata.setdefault("deletionTimestamp", _now())
                metadata["finalizers"] = [_FINALIZER]
                return self._kept(path, thing, "MODIFIED")
            return self._removed(path)
        return thing

    def _posted(self, path: str, body: Json) -> Json:
        metadata = body["metadata"]
        name = metadata.setdefault("name", metadata.get("generateName", "") + uuid.uuid4().hex[:5])
        if f"{path}/{name}" in self._objects:
            raise ApiError(409, "AlreadyExists", f"{name!r} already exists")
        needed = {"sandboxclaims": "warmPoolRef", "sandboxwarmpools": "sandboxTemplateRef"}
        field = needed.get(path.rpartition("/")[2])
        if field is not None and not body["spec"].get(field, {}).get("name"):
            raise ApiError(422, "Invalid", f"spec.{field}.name: Required value")
        metadata |= {"uid": str(uuid.uuid4()), "creationTimestamp": _now()}
        return self._kept(f"{path}/{name}", body, "ADDED")

    def _kept(self, path: str, thing: Json, event: str) -> Json:
        self._version += 1
        thing["metadata"]["resourceVersion"] = str(self._version)
        self._objects[path] = thing
        self.events.append((self._version, path, event, json.loads(json.dumps(thing))))
        return thing

    def _removed(self, path: str) -> Json:
        thing = self._kept(path, self._objects[path], "DELETED")
        del self._objects[path]
        return thing

    def collect(self, pods: dict[str, Json]) -> None:
        """What the cluster's garbage collector does: owned objects end with their owner, or before it."""
        with self._lock:
            found = dict(self._objects)
            owners = {each["metadata"]["uid"]: each for each in found.values()}
            for path, thing in found.items():
                refs = thing["metadata"].get("ownerReferences") or ()
                gone = [each for each in refs if each["uid"] not in owners]
                leaving = [
                    each
                    for each in refs
                    if _FINALIZER
                    in owners.get(each["uid"], thing)["metadata"].get("finalizers", ())
                ]
                if (gone or leaving) and "deletionTimestamp" not in thing["metadata"]:
                    self._custom("DELETE", path, None)
            found = dict(self._objects)
            owned = {
                each["uid"]
                for thing in self._objects.values()
                for each in thing["metadata"].get("ownerReferences") or ()
            }
            for path, thing in found.items():
                metadata = thing["metadata"]
                busy = "/sandboxes/" in path and metadata["name"] in pods
                if metadata.get("finalizers") and not busy and metadata["uid"] not in owned:
                    self._removed(path)


def _has(thing: Json, wanted: list[list[str]]) -> bool:
    labels = thing["metadata"].get("labels") or {}
    return all(labels.get(key) == value for key, value in wanted)


def _merged(before: Any, change: Any) -> Any:
    """RFC 7396."""
    if not isinstance(change, dict):
        return change
    found = dict(before) if isinstance(before, dict) else {}
    for key, value in change.items():
        if value is None:
            found.pop(key, None)
        else:
            found[key] = _merged(found.get(key), value)
    return found


def _now() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


@contextmanager
def server_in_front(cluster: Cluster, folder: Path) -> Iterator[tuple[Store, Path]]:
    """The store, and the path of a kubeconfig in `folder` that leads to it."""
    store = Store(cluster)
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    front = asyncio.run_coroutine_threadsafe(
        asyncio.start_server(_Front(store).serve, "127.0.0.1", 0), loop
    ).result(30)
    port = front.sockets[0].getsockname()[1]
    text = cluster.kubeconfig.read_text().replace(cluster.server, f"http://127.0.0.1:{port}")
    copy = folder / "kubeconfig-front"
    copy.write_text(text)
    try:
        yield store, copy
    finally:
        asyncio.run_coroutine_threadsafe(_ended(front), loop).result(30)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(30)
        loop.close()


async def _ended(front: asyncio.Server) -> None:
    front.close()
    tasks = [each for each in asyncio.all_tasks() if each is not asyncio.current_task()]
    for each in tasks:
        each.cancel()
    if tasks:
        await asyncio.wait(tasks, timeout=10)


class _Front:
    """One request a connection: the store's are answered, the others are passed to the cluster."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._serving: set[asyncio.Task[None] | None] = set()
        """Strong references: asyncio itself has weak ones only."""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        self._serving.add(task)
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            method, target, _ = head.split(b"\r\n")[0].decode().split(" ", 2)
            if target.startswith(_GROUPS):
                _, _, rest = head.lower().partition(b"\r\ncontent-length:")
                length = int(rest.split(b"\r\n")[0] or 0)
                await self._answer(method, target, await reader.readexactly(length), writer)
            else:
                await self._pass(head, reader, writer)
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass  # the client has gone, or the test is over
        finally:
            writer.close()
            self._serving.discard(task)

    async def _answer(
        self, method: str, target: str, body: bytes, writer: asyncio.StreamWriter
    ) -> None:
        url = urllib.parse.urlsplit(target)
        query = dict(urllib.parse.parse_qsl(url.query))
        if "watch" in query:
            await self._watch(url.path, query, writer)
            return
        code, answer = 200, None
        try:
            if method == "GET" and "labelSelector" in query:
                answer = self._store.listed(url.path, query["labelSelector"])
            else:
                answer = self._store.request(method, url.path, json.loads(body or b"null"))
        except ApiError as error:
            code = error.status
            answer = {"kind": "Status", "status": "Failure", "code": code}
            answer |= {"reason": error.reason, "message": str(error)}
            answer["details"] = {"kind": url.path.split("/")[6]}
        data = json.dumps(answer).encode()
        head = f"HTTP/1.1 {code} -\r\nContent-Type: application/json\r\nConnection: close\r\n"
        writer.write(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data)
        await writer.drain()

    async def _watch(self, path: str, query: dict[str, str], writer: asyncio.StreamWriter) -> None:
        wanted = [part.split("=") for part in query.get("labelSelector", "").split(",") if part]
        writer.write(
            b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\n\r\n"
        )
        after, at = int(query["resourceVersion"]), 0
        end = time.monotonic() + int(query["timeoutSeconds"])
        while time.monotonic() < end:
            new = self._store.events[at:]  # others are added meanwhile
            at += len(new)
            for version, place, event, thing in new:
                if version > after and place.rpartition("/")[0] == path and _has(thing, wanted):
                    writer.write(json.dumps({"type": event, "object": thing}).encode() + b"\n")
            await writer.drain()
            await asyncio.sleep(_POLL)

    async def _pass(
        self, head: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        url = urllib.parse.urlsplit(self._store.cluster.server)
        tls: ssl.SSLContext = self._store.cluster.tls
        upward, downward = await asyncio.open_connection(url.hostname, url.port or 443, ssl=tls)
        if b"\r\nupgrade:" not in head.lower():
            head = head.replace(b"\r\n", b"\r\nConnection: close\r\n", 1)
        downward.write(head)
        pipes = [
            asyncio.create_task(_piped(reader, downward)),
            asyncio.create_task(_piped(upward, writer)),
        ]
        try:
            await pipes[1]  # the cluster's side ends the connection
        finally:
            downward.transport.abort()
            for each in pipes:
                each.cancel()
            await asyncio.wait(pipes)


async def _piped(source: asyncio.StreamReader, to: asyncio.StreamWriter) -> None:
    while data := await source.read(1 << 16):
        to.write(data)
        await to.drain()

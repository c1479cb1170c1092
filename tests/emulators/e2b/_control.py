"""E2B's control API. Each request and response is checked with the SDK's own models."""

import datetime
import ipaddress
import json
import re
import secrets
import urllib.parse
from collections.abc import Callable
from typing import Any, TypeVar

from e2b.api.client import models

from sandboxkit import SandboxError
from tests.emulators._serving import RefusedError, body_of, respond
from tests.emulators.e2b._boxes import Box, Boxes, now
from tests.emulators.e2b._envd import drop_streams
from tests.faults.asgi import Message, Receive, Send

KEY = "e2b_0123456789abcdef"
TEMPLATES = ("base", "python", "old")
FORBIDDEN = ("of-another-team",)
MAX_TIMEOUT = 24 * 3600
PAGE = 3
"""Maximum number of sandboxes per page, even if the request has a higher limit."""

_WRONG_KEY = (
    "Invalid API key, please visit https://e2b.dev/docs/api-key for more information.\n"
    "Cannot get the team for the given API key"
)

T = TypeVar("T")
_SNAPSHOT_NAME = re.compile(r"[a-z0-9_-]{1,128}")
Answer = tuple[int, Any, dict[str, str]]


class Control:
    def __init__(self, boxes: Boxes, violation: Callable[[str], None]) -> None:
        self._boxes, self._violation, self._shape = boxes, violation, boxes.shape

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        body = await body_of(receive)
        headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        query = dict(urllib.parse.parse_qsl(scope["query_string"].decode(), strict_parsing=False))
        try:
            path = scope["path"].removeprefix(self._shape.prefix)
            answer = await self._route(scope["method"], path, headers, query, body)
        except RefusedError as error:
            said = str(error)
            content: object = models.Error(code=error.status, message=said).to_dict()
            if said.startswith("text:"):
                content = said.removeprefix("text:")
            answer = error.status, content, {}
        await respond(send, *answer)

    async def _route(
        self, method: str, path: str, headers: dict[str, str], query: dict[str, str], body: bytes
    ) -> Answer:
        if headers.get("x-api-key") != KEY:
            raise RefusedError(401, _WRONG_KEY)
        if any(re.match(route, f"{method} {path}") for route in self._shape.lacks):
            raise RefusedError(*self._shape.no_route)
        match method, path.strip("/").split("/"):
            case "POST", ["sandboxes"]:
                if self._shape.auto_pauses and json.loads(body).get("autoPause") is not False:
                    self._violation("the sandbox would be paused at the end of its lifetime")
                return await self._create(self._model(models.NewSandbox, body), {})
            case "POST", ["v2", "sandboxes"]:
                return await self._create(self._model(models.NewSandboxV2, body), headers)
            case "GET", ["v2", "sandboxes"]:
                return self._list(query)
            case "GET", ["sandboxes", sandbox_id]:
                return 200, self._detail(self._box(sandbox_id)).to_dict(), {}
            case "DELETE", ["sandboxes", sandbox_id]:
                self._box(sandbox_id)
                await self._boxes.kill(sandbox_id)
                return 204, None, {}
            case "POST", ["sandboxes", sandbox_id, "pause"]:
                self._model(models.SandboxPauseRequest, body)
                return await self._pause(self._box(sandbox_id))
            case "POST", ["sandboxes", sandbox_id, "connect"]:
                ttl = _timeout(self._model(models.ConnectSandbox, body).timeout)
                return await self._connect(self._box(sandbox_id), ttl)
            case "POST", ["sandboxes", sandbox_id, "snapshots"]:
                wanted = self._model(models.SandboxSnapshotRequest, body)
                return await self._snapshot(self._running(sandbox_id), wanted)
            case "GET", ["snapshots"]:
                if unknown := query.keys() - {"sandboxID", "name", "limit", "nextToken"}:
                    self._violation(f"listing snapshots has no {sorted(unknown)}")
                found = [name for name in self._boxes.snapshots if query.get("name", "") in name]
                page, extra = _page(found, query)
                return 200, [_snapshot(name) for name in page], extra
            case "DELETE", ["templates", *parts]:
                name = "/".join(parts)
                if not await self._boxes.snapshots.remove(name):
                    raise RefusedError(404, f"template '{name}' not found")
                return 204, None, {}
            case "POST", ["sandboxes", sandbox_id, "timeout"]:
                asked = self._model(models.SandboxTimeoutRequest, body)
                self._boxes.set_timeout(self._running(sandbox_id), _timeout(asked.timeout))
                return 204, None, {}
        self._violation(f"unknown request {method} {path}")
        raise RefusedError(404, "not found")

    def _model(self, kind: Any, body: bytes) -> Any:
        model = kind.from_dict(json.loads(body))
        if model.additional_properties:
            self._violation(f"{kind.__name__} has no {sorted(model.additional_properties)}")
        return model

    def _box(self, sandbox_id: str) -> Box:
        if not re.fullmatch(self._shape.ids, sandbox_id):
            raise RefusedError(400, "Invalid sandbox ID")
        try:
            return self._boxes.alive[sandbox_id]
        except KeyError:
            raise RefusedError(404, self._shape.no_sandbox.format(id=sandbox_id)) from None

    def _running(self, sandbox_id: str) -> Box:
        box = self._box(sandbox_id)
        if box.paused:
            status, message = self._shape.not_running
            raise RefusedError(status, message.format(id=sandbox_id))
        return box

    async def _pause(self, box: Box) -> Answer:
        if box.paused:
            message = f"Error pausing sandbox - sandbox '{box.id}' is already paused"
            raise RefusedError(409, message)
        self._boxes.set_timeout(box, None)
        await box.machine.sandbox.pause()
        box.paused = True
        await drop_streams(box)
        return 204, None, {}

    async def _connect(self, box: Box, ttl: int) -> Answer:
        """Resume a paused sandbox; for a running one set only a longer timeout."""
        resumed = box.paused
        if resumed:
            self._check_quota()
            await box.machine.sandbox.resume()
            box.paused = False
        if resumed or box.ends < now() + datetime.timedelta(seconds=ttl):
            self._boxes.set_timeout(box, ttl)
        return (201 if resumed else 200), self._made(box).to_dict(), {}

    async def _snapshot(self, box: Box, asked: models.SandboxSnapshotRequest) -> Answer:
        """Make a snapshot; its id is "team/NAME:default"."""
        if asked.name and not _SNAPSHOT_NAME.fullmatch(asked.name):
            raise RefusedError(400, f"Invalid snapshot name: {asked.name}")
        name = f"team/{asked.name or secrets.token_hex(10)}:default"
        try:
            self._boxes.snapshots[name] = await box.machine.sandbox.snapshot()
        except SandboxError as error:
            raise RefusedError(500, f"Error creating snapshot: {error}") from error
        await drop_streams(box)
        return 201, _snapshot(name), {}

    async def _create(
        self, asked: models.NewSandbox | models.NewSandboxV2, headers: dict[str, str]
    ) -> Answer:
        key = headers.get("idempotency-key")
        box = self._boxes.alive.get(self._boxes.keys.get(key or "", ""))
        if asked.template_id in FORBIDDEN:
            raise RefusedError(403, f"you don't have access to template '{asked.template_id}'")
        if asked.template_id not in (*TEMPLATES, *self._boxes.snapshots):
            status, message = self._shape.no_template
            raise RefusedError(status, message.format(template=asked.template_id))
        ttl = _timeout(asked.timeout)
        if ttl < self._shape.shortest:
            raise RefusedError(400, f"timeout should between {self._shape.shortest} and 2592000")
        metadata, env = asked.metadata or {}, asked.env_vars or {}
        for mapping in (metadata, env):
            if not all(isinstance(value, str) for value in mapping.values()):
                self._violation("metadata and environment are text")
        for key in dict(metadata.items()):
            if not re.fullmatch(self._shape.keys, key):
                raise RefusedError(400, f"Unqualified metadata key [{key}]: must be a name")
        if box is None:
            self._check_quota()
            internet = asked.allow_internet_access is not False
            rules = self._network(asked.network)
            box = await self._boxes.create(asked.template_id, metadata, env, internet, rules, ttl)
            if key:
                self._boxes.keys[key] = box.id
        return 201, self._made(box).to_dict(), {}

    def _network(self, asked: Any) -> models.SandboxNetworkConfig:
        """Check the network settings of a request. E2B's server, as others host it, may be too old for any."""
        if not asked or not self._shape.knows_networks:
            return models.SandboxNetworkConfig(allow_out=[], deny_out=[], allow_public_traffic=True)
        if asked.additional_properties:
            self._violation(f"a network has no {sorted(asked.additional_properties)}")
        allowed, denied = asked.allow_out or [], asked.deny_out or []
        for entry in denied:
            if not _is_network(entry):
                raise RefusedError(400, f"invalid denied CIDR {entry}")
        names = [entry for entry in allowed if not _is_network(entry)]
        if names and "0.0.0.0/0" not in denied:
            why = "When specifying allowed domains in allow out, you must include 'ALL_TRAFFIC' in"
            raise RefusedError(400, f"{why} deny out to block all other traffic.")
        if wrong := [name for name in names if ":" in name or "/" in name]:
            raise RefusedError(400, f"invalid domain {wrong[0]}")
        public = asked.allow_public_traffic is not False
        return models.SandboxNetworkConfig(
            allow_out=allowed, deny_out=denied, allow_public_traffic=public
        )

    def _check_quota(self) -> None:
        limit = self._boxes.settings.limit
        running = sum(not box.paused for box in self._boxes.alive.values())
        if running + self._boxes.starting >= limit:
            why = f"you have reached the maximum number of concurrent E2B sandboxes ({limit})"
            remedy = "If you need more, please visit 'https://e2b.dev/docs/billing'"
            raise RefusedError(429, f"{why}. {remedy}")

    def _list(self, query: dict[str, str]) -> Answer:
        for name in query:
            if name not in ("metadata", "limit", "nextToken", "state", "order"):
                self._violation(f"listing has no parameter {name!r}")
        wanted = {}
        for pair in filter(None, urllib.parse.unquote_plus(query.get("metadata", "")).split("&")):
            name, _, value = pair.partition("=")
            if self._shape.quotes == 2:
                name, value = urllib.parse.unquote_plus(name), urllib.parse.unquote_plus(value)
            wanted[name] = value
        found = [
            box for box in self._boxes.alive.values() if wanted.items() <= box.metadata.items()
        ]
        page, extra = _page(found, query)
        return 200, [models.ListedSandbox(**self._facts(box)).to_dict() for box in page], extra

    def _made(self, box: Box) -> models.Sandbox:
        return models.Sandbox(
            template_id=box.template,
            sandbox_id=box.id,
            client_id="emulator",
            envd_version=self._facts(box)["envd_version"],
            envd_access_token=box.token,
            traffic_access_token=None if box.network.allow_public_traffic else f"t-{box.id}",
            domain=None,
        )

    def _facts(self, box: Box) -> dict[str, Any]:
        later = datetime.timedelta(seconds=self._shape.paused_until if box.paused else 0)
        return {
            "template_id": box.template,
            "alias": box.template,
            "sandbox_id": box.id,
            "client_id": "emulator",
            "started_at": box.started,
            "end_at": box.ends + later,
            "envd_version": "0.2.9" if box.template == "old" else self._shape.envd,
            "cpu_count": 2,
            "memory_mb": 512,
            "disk_size_mb": 1024,
            "state": models.SandboxState.PAUSED if box.paused else models.SandboxState.RUNNING,
            "metadata": {**box.metadata, **self._shape.adds},
        }

    def _detail(self, box: Box) -> models.SandboxDetail:
        return models.SandboxDetail(
            **self._facts(box),
            envd_access_token=box.token,
            allow_internet_access=box.internet,
            network=box.network,
        )


def _page(found: list[T], query: dict[str, str]) -> tuple[list[T], dict[str, str]]:
    """Return the requested page of a list, and the headers with the token of the next page."""
    start = int(query.get("nextToken", "0"))
    size = min(PAGE, int(query.get("limit", "100")))
    extra = {"x-next-token": str(start + size)} if len(found) > start + size else {}
    return found[start : start + size], extra


def _is_network(entry: str) -> bool:
    try:
        ipaddress.ip_network(entry)
    except ValueError:
        return False
    return True


def _snapshot(name: str) -> dict[str, Any]:
    return models.SnapshotInfo(snapshot_id=name, names=[name]).to_dict()


def _timeout(asked: Any) -> int:
    if not isinstance(asked, int) or asked < 0:
        raise RefusedError(400, "timeout must be a whole number of seconds")
    if asked > MAX_TIMEOUT:
        raise RefusedError(400, f"Timeout cannot be greater than {MAX_TIMEOUT // 3600} hours")
    return asked

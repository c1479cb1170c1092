"""Daytona's control API. Each request and response is checked with the vendor's client models."""

import datetime
import ipaddress
import json
import urllib.parse
from typing import Any

import daytona_api_client_async as api

from tests.emulators._serving import RefusedError, body_of, respond
from tests.emulators.daytona._boxes import Answer, Box, Boxes, Violation, check_key, read, refusal
from tests.faults.asgi import Message, Receive, Send

PAGE = 3
"""Maximum number of sandboxes per page, even if the request has a higher limit."""
SNAPSHOTS = (None, "daytona-small")
TARGETS = (None, "us", "eu")
USERS = (None, "daytona", "root")
_SNAPSHOT_ID = "id-of-"
MAX_MINUTES = 30 * 24 * 60
MAX_LABEL = 4096


class Control:
    def __init__(self, boxes: Boxes, violation: Violation) -> None:
        self._boxes, self._violation = boxes, violation

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        body = await body_of(receive)
        query = dict(urllib.parse.parse_qsl(scope["query_string"].decode()))
        try:
            check_key(scope)
            host = dict(scope["headers"])[b"host"].decode()
            status, content = await self._route(scope, query, body, f"http://{host}/toolbox")
        except RefusedError as error:
            status, content = error.status, refusal(error, scope["path"])
        await respond(send, status, content)

    async def _route(
        self, scope: Message, query: dict[str, str], body: bytes, proxy: str
    ) -> Answer:
        match scope["method"], scope["path"].strip("/").split("/")[1:]:
            case "POST", ["sandbox"]:
                return await self._create(read(api.CreateSandbox, body, self._violation), proxy)
            case "GET", ["sandbox"]:
                return self._list(query, proxy)
            case "GET", ["sandbox", name]:
                box = self._box(name)
                return 200, {**_sandbox(box, proxy).to_dict(), **box.said}
            case "DELETE", ["sandbox", name]:
                box = self._box(name)
                if box.state is api.SandboxState.CREATING:
                    raise RefusedError(409, "Sandbox state change in progress")
                await self._boxes.kill(box.id)
                box.state = api.SandboxState.DESTROYING
                return 200, _sandbox(box, proxy).to_dict()
            case "POST", ["sandbox", name, "snapshot"]:
                box = self._box(name)
                asked = read(api.CreateSandboxSnapshot, body, self._violation)
                if box.state not in (api.SandboxState.STARTED, api.SandboxState.STOPPED):
                    raise RefusedError(
                        400, "Sandbox must be in started or stopped state to create a snapshot"
                    )
                if asked.include_memory:
                    raise RefusedError(400, "includeMemory is only supported for VM sandboxes")
                quota = self._boxes.settings.most_snapshots
                if len(self._boxes.made_of) >= quota:
                    raise RefusedError(403, f"Snapshot quota exceeded. Maximum allowed: {quota}")
                self._boxes.snapshot(box, asked.name)
                return 200, _sandbox(box, proxy).to_dict()
            case "GET", ["snapshots"]:
                return 200, self._snapshots(query)
            case "GET", ["snapshots", name]:
                return 200, self._snapshot(name)
            case "DELETE", ["snapshots", name]:
                self._snapshot(name)
                self._boxes.remove_snapshot(name.removeprefix(_SNAPSHOT_ID))
                return 200, None
            case "GET", ["sandbox", name, "ports", port, "preview-url"]:
                box = self._box(name)
                url = f"https://{int(port)}-{box.id}.proxy.daytona.test"
                return 200, {"sandboxId": box.id, "url": url, "token": f"t-{box.id}"}
            case "POST", ["sandbox", name, "ttl", minutes]:
                box = self._box(name)
                self._boxes.set_ttl(box, float(minutes))
                return 200, _sandbox(box, proxy).to_dict()
        self._violation(f"unknown request {scope['method']} {scope['path']}")
        raise RefusedError(404, "Cannot find that")

    def _box(self, id_or_name: str) -> Box:
        box = self._boxes.find(id_or_name)
        if box is None:
            raise RefusedError(404, f"Sandbox with ID or name {id_or_name} not found")
        return box

    def _snapshot(self, id_or_name: str) -> dict[str, Any]:
        name = id_or_name.removeprefix(_SNAPSHOT_ID)
        box = self._boxes.made_of.get(name)
        if box is None:
            raise RefusedError(404, f"Snapshot with ID or name {id_or_name} not found")
        now, state = datetime.datetime.now(datetime.UTC), api.SnapshotState.ACTIVE
        if name in self._boxes.removing:
            state = api.SnapshotState.REMOVING
        elif name in self._boxes.inactive:
            state = api.SnapshotState.INACTIVE
        snapshot = api.SnapshotDto(
            id=f"{_SNAPSHOT_ID}{name}",
            general=False,
            name=name,
            state=state,
            size=1.0,
            entrypoint=None,
            cpu=box.cpu,
            gpu=0,
            mem=box.memory,
            disk=box.disk,
            error_reason=None,
            created_at=now,
            updated_at=now,
            last_used_at=None,
            source_sandbox_id=box.id,
            sandbox_class=api.SandboxClass.CONTAINER,
        )
        return dict(json.loads(snapshot.to_json()))

    def _snapshots(self, query: dict[str, str]) -> dict[str, Any]:
        if unknown := query.keys() - {"page", "limit", "name"}:
            self._violation(f"listing snapshots has no parameter {sorted(unknown)}")
        found = [name for name in self._boxes.made_of if query.get("name", "") in name]
        number, size = int(query.get("page", "1")), min(PAGE, int(query.get("limit", "10")))
        return {
            "items": [self._snapshot(name) for name in found[(number - 1) * size : number * size]],
            "total": len(found),
            "page": number,
            "totalPages": -(-len(found) // size),
        }

    async def _create(self, asked: api.CreateSandbox, proxy: str) -> Answer:
        sizes = (asked.cpu, asked.memory, asked.disk)
        if asked.snapshot not in (*SNAPSHOTS, *self._boxes.made_of):
            raise RefusedError(400, f"Snapshot {asked.snapshot} not found. Did you add it?")
        if asked.snapshot in self._boxes.removing:
            raise RefusedError(400, f"Snapshot {asked.snapshot} is removing")
        if asked.snapshot in self._boxes.inactive:
            raise RefusedError(400, f"Snapshot {asked.snapshot} is inactive")
        if asked.build_info is None and any(size is not None for size in sizes):
            raise RefusedError(400, "Cannot specify Sandbox resources when using a snapshot")
        if asked.target not in TARGETS:
            raise RefusedError(400, f"Region {asked.target} not found")
        if asked.user not in USERS:
            raise RefusedError(400, f"User {asked.user} does not exist")
        if asked.name is not None and self._boxes.find(asked.name) is not None:
            raise RefusedError(409, f"Sandbox with name {asked.name} already exists")
        if any(len(text) > MAX_LABEL for pair in (asked.labels or {}).items() for text in pair):
            raise RefusedError(400, "labels must be shorter")
        if not 0 <= (asked.ttl_minutes or 0) <= MAX_MINUTES:
            raise RefusedError(400, f"ttlMinutes must not be greater than {MAX_MINUTES}")
        self._check_network(asked)
        taken, cpus = sum(box.cpu for box in self._boxes.alive.values()), self._boxes.settings.cpus
        if cpus is not None and taken + (asked.cpu or 1) > cpus:
            why = f"Total CPU limit exceeded. Maximum allowed: {cpus:g}."
            remedy = "To increase concurrency limits, upgrade your organization's Tier"
            raise RefusedError(400, f"{why}\n{remedy}")
        return 200, _sandbox(await self._boxes.create(asked), proxy).to_dict()

    def _check_network(self, asked: api.CreateSandbox) -> None:
        names, networks = asked.domain_allow_list, asked.network_allow_list
        if asked.network_block_all and (names or networks):
            self._violation("a list of allowed servers with networkBlockAll, which hides it")
        if names and networks:
            raise RefusedError(400, "domainAllowList and networkAllowList cannot be combined")
        for network in (networks or "").split(",") if networks else []:
            try:
                ipaddress.IPv4Network(network)
            except ValueError:
                raise RefusedError(400, f"Invalid network {network}") from None

    def _list(self, query: dict[str, str], proxy: str) -> Answer:
        if unknown := query.keys() - {"labels", "limit", "cursor"}:
            self._violation(f"listing has no parameter {sorted(unknown)}")
        wanted = json.loads(query.get("labels", "{}"))
        found = [box for box in self._boxes.alive.values() if wanted.items() <= box.labels.items()]
        start, size = int(query.get("cursor", "0")), min(PAGE, int(query.get("limit", "100")))
        return 200, api.ListSandboxesResponse(
            items=[
                api.SandboxListItem(**_facts(box, proxy)) for box in found[start : start + size]
            ],
            next_cursor=str(start + size) if len(found) > start + size else None,
        ).to_dict()


def _facts(box: Box, proxy: str) -> dict[str, Any]:
    asked = box.asked
    return {
        "id": box.id,
        "organization_id": "emulator",
        "name": asked.name or box.id,
        "target": asked.target or "us",
        "state": box.state,
        "snapshot": asked.snapshot,
        "user": asked.user or "daytona",
        "error_reason": box.error,
        "public": False,
        "network_block_all": bool(asked.network_block_all),
        "network_allow_list": asked.network_allow_list,
        "domain_allow_list": asked.domain_allow_list,
        "cpu": box.cpu,
        "gpu": 0,
        "memory": box.memory,
        "disk": box.disk,
        "labels": box.labels,
        "auto_stop_interval": asked.auto_stop_interval,
        "auto_delete_interval": asked.auto_delete_interval,
        "auto_destroy_at": _text(box.destroy_at),
        "created_at": _text(box.created),
        "toolbox_proxy_url": proxy,
    }


def _sandbox(box: Box, proxy: str) -> api.Sandbox:
    return api.Sandbox(**_facts(box, proxy), env=box.asked.env or {}, kvm=False)


def _text(moment: Any) -> str | None:
    return None if moment is None else moment.isoformat().replace("+00:00", "Z")

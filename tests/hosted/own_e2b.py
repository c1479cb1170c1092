"""A vendor in one file: a server of one's own that speaks E2B's protocol, asked over plain HTTP.

It shows what a vendor supplies to `_hosted.vendor`. The provider `e2b` does the same with E2B's SDK, and more.
"""

import asyncio
import base64
import json
import os
import re
import urllib.parse
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any, ClassVar

import anyio
import httpx

from sandboxkit.errors import (
    AuthenticationError,
    CapacityError,
    ConfigurationError,
    ImageNotFoundError,
    ProviderUnavailableError,
    SandboxError,
    SandboxNotFoundError,
)
from sandboxkit.provider import Box, no_sandbox
from sandboxkit.providers._error_rules import ErrorRule, Failure, apply_rules
from sandboxkit.providers._hosted.account import READING, VendorAccount, check_address
from sandboxkit.providers._hosted.agent import ProgramStream
from sandboxkit.providers._hosted.ambiguous import AmbiguousError, repeatable
from sandboxkit.providers._hosted.http_errors import retry_after
from sandboxkit.providers._hosted.pipe import BytePipe
from sandboxkit.providers._hosted.vendor import VendorBox, VendorProvider
from sandboxkit.providers._rules import STRICT, UNICODE, never
from sandboxkit.types import SandboxInfo, SandboxSpec, SandboxState

NAME = "own-e2b"
_KEY_TAG = "sandboxkit.create"
_PAGE = 100
_PIECE = 1 << 20
"""Maximum input (bytes) per call."""
_HELD = 1 << 20
"""Output (bytes) that is buffered before back-pressure stops the server and the program."""
_FLUSH_SECONDS = 1.0
"""How long (s) a program whose stream is closed may take to exit before it is killed."""
_RULES = (
    ErrorRule((401, 403), AuthenticationError, "check E2B_API_KEY"),
    ErrorRule((404, 410, 502), SandboxNotFoundError, needed={"sandbox"}),
    ErrorRule((400,), SandboxNotFoundError, "", "Invalid sandbox ID", {"sandbox"}),
    ErrorRule((400, 404), ImageNotFoundError, "see the server's templates", "template"),
    ErrorRule((429,), CapacityError, "stop sandboxes or use fewer", "maximum number"),
    ErrorRule((429, 503), ProviderUnavailableError, "try again later"),
    ErrorRule(range(500), ConfigurationError, "check E2B_API_URL"),
    ErrorRule((), AmbiguousError, "try again"),
)
_REFUSED = {
    **dict.fromkeys(("cpus", "memory_mb", "disk_mb"), "the template fixes it"),
    **dict.fromkeys(("pids", "gpu", "isolation", "mounts"), "this server cannot do that"),
}


class OwnAccount(VendorAccount):
    """The server at E2B_API_URL, and the proxy in front of its sandboxes at E2B_SANDBOX_URL."""

    name: ClassVar = NAME
    addresses: ClassVar = "E2B_API_URL, E2B_SANDBOX_URL"
    refusals: ClassVar = (httpx.HTTPStatusError,)
    unreachable: ClassVar = (httpx.ConnectError, httpx.InvalidURL)
    broken: ClassVar = (httpx.HTTPError, httpx.InvalidURL, OSError)

    def __init__(self, timeout: float) -> None:
        super().__init__(timeout)
        self._client: httpx.AsyncClient | None = None

    def check(self) -> None:
        self.check_key("E2B_API_KEY", os.environ.get("E2B_API_KEY", ""), "see the server's manual")
        for variable in ("E2B_API_URL", "E2B_SANDBOX_URL"):
            check_address(variable, os.environ.get(variable, ""))

    def client(self) -> httpx.AsyncClient:
        """Return the client, whose requests have no time limit of its own."""
        if self._client is None:
            self._client = httpx.AsyncClient(
                timeout=None,  # `bounded` has the limit
                limits=httpx.Limits(max_connections=None),
                event_hooks={"response": [_raise_status]},
            )
        return self._client

    async def call(
        self,
        method: str,
        path: str,
        what: str,
        *,
        sandbox_id: str | None = None,
        seconds: float | None = None,
        **options: Any,
    ) -> httpx.Response:
        """Make a request to the server's API."""
        url, headers = os.environ["E2B_API_URL"], {"X-API-Key": os.environ["E2B_API_KEY"]}
        request = self.client().request(method, url + path, headers=headers, **options)
        return await self.bounded(request, what=what, sandbox_id=sandbox_id, seconds=seconds)

    def identity(self) -> str:
        return f"{os.environ['E2B_API_URL']} {os.environ['E2B_API_KEY']}"

    # Any: `refusals` has one class alone.
    def refused(self, error: Any, what: str, sandbox_id: str | None) -> SandboxError:
        status, said = error.response.status_code, error.response.text[:500]
        text, delay = (
            f"{NAME} could not {what}: {status} {said}",
            retry_after(error.response.headers),
        )
        return apply_rules(Failure(text, said, {status}, sandbox_id, delay), _RULES)

    async def aclose(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.aclose()


class OwnProgram(ProgramStream):
    """A program that the sandbox's daemon runs; its input goes by successive calls."""

    def __init__(self, box: "OwnBox", argv: tuple[str, ...]) -> None:
        self._box, self._output = box, BytePipe(_HELD)
        self._pid, self._decided = 0, anyio.Event()
        self._error: Exception | None = None
        self._ended = self._closed = False
        self._sending = anyio.CancelScope()
        self._following = asyncio.create_task(self._follow(argv))

    async def begin(self) -> None:
        """Wait until the program runs; raise the client's error if it does not."""
        await self._decided.wait()
        if not self._pid:
            raise self._error or ValueError("the program did not start")

    async def receive(self, max_bytes: int = 65536) -> bytes:
        data = b"" if self._closed else await self._output.take(max_bytes)
        if self._closed:
            raise anyio.ClosedResourceError
        if not data:
            raise anyio.EndOfStream if self._ended else anyio.BrokenResourceError
        return data

    async def send(self, item: bytes) -> None:
        for start in range(0, len(item), _PIECE):
            if self._closed:
                raise anyio.ClosedResourceError
            data = base64.b64encode(item[start : start + _PIECE]).decode()
            with anyio.CancelScope() as self._sending:
                try:
                    await self._ask("SendInput", {"input": {"stdin": data}})
                except self._box.backend.account.broken as error:
                    raise anyio.BrokenResourceError from error
        if self._closed:
            raise anyio.ClosedResourceError

    async def aclose(self) -> None:
        if not self._closed:
            self._closed = True
            self._output.close()
            self._sending.cancel()
            self._box.endings.begin(self._finish())

    async def _follow(self, argv: tuple[str, ...]) -> None:
        process = {"cmd": argv[0], "args": argv[1:], "cwd": "/"}
        try:
            async for event in self._box.events({"process": process, "stdin": True}):
                if "start" in event:
                    self._pid = event["start"]["pid"]
                    self._decided.set()
                self._ended = self._ended or "end" in event
                data = base64.b64decode(event.get("data", {}).get("stdout", ""))
                with suppress(anyio.BrokenResourceError):  # it is closed: only its end matters
                    await self._output.put(data)
        except (*self._box.backend.account.broken, *READING) as error:
            self._error = error
        finally:
            self._output.close()
            self._decided.set()

    async def _finish(self) -> None:
        try:
            with anyio.move_on_after(self._box.backend.account.silence), suppress(httpx.HTTPError):
                await self._decided.wait()
                if self._pid and not self._ended and not self._box.deletions:
                    await self._ask("CloseStdin", {})
                    await asyncio.wait([self._following], timeout=_FLUSH_SECONDS)
                    if not self._ended:
                        await self._ask("SendSignal", {"signal": "SIGNAL_SIGKILL"})
        finally:
            self._following.cancel()
            await asyncio.wait([self._following])

    async def _ask(self, call: str, body: Mapping[str, Any]) -> None:
        await self._box.ask(call, {"process": {"pid": self._pid}, **body})


class OwnBox(VendorBox["OwnE2BProvider"]):
    """One sandbox of the server."""

    ids = re.compile(r"[a-z0-9][a-z0-9.-]{0,319}")
    user = "user"

    def __init__(self, provider: "OwnE2BProvider", sandbox_id: str) -> None:
        super().__init__(provider, sandbox_id)
        self.token = ""
        """The token for its daemon, once known."""

    async def info(self) -> SandboxInfo:
        return _info(await self._detail())

    async def ask(self, call: str, body: Mapping[str, Any]) -> None:
        """Make a call of the daemon's process service."""
        client, url = self.backend.account.client(), f"{_daemon()}/{call}"
        await client.post(url, headers=self._headers(), json=body)

    async def events(self, body: Mapping[str, Any]) -> AsyncIterator[Mapping[str, Any]]:
        """Start a program and yield the daemon's events of it, each of which is JSON behind five bytes."""
        data, kind = json.dumps(body).encode(), {"Content-Type": "application/connect+json"}
        content = b"\0" + len(data).to_bytes(4, "big") + data
        request = self.backend.account.client().stream(
            "POST", f"{_daemon()}/Start", headers=self._headers() | kind, content=content
        )
        held = bytearray()
        async with request as answer:
            async for piece in answer.aiter_raw():
                held += piece
                while len(held) >= 5 and len(held) >= (end := 5 + int.from_bytes(held[1:5], "big")):
                    message = json.loads(held[5:end])
                    del held[:end]
                    if "error" in message:
                        raise ValueError(message["error"])
                    yield message.get("event", {})

    async def _run(self, argv: tuple[str, ...]) -> OwnProgram:
        self.token = self.token or (await self._detail())["envdAccessToken"]
        program = OwnProgram(self, argv)
        try:
            account, what = self.backend.account, "run a program"
            await account.bounded(program.begin(), what=what, sandbox_id=self.id)
        except BaseException:
            await program.aclose()
            raise
        return program

    async def _end(self) -> None:
        await self.disconnect()
        await repeatable(lambda: self._request("DELETE", "", "stop a sandbox"))

    async def _set_lifetime(self, seconds: int) -> None:
        await self._request("POST", "/timeout", "renew a sandbox", json={"timeout": seconds})

    async def _keep_files(self, name: str, seconds: int | None) -> str:
        limit, body = self.backend.account.timeout, {"name": name, "memory": False}
        path, what = "/snapshots", "make a snapshot"
        made = await self._request("POST", path, what, seconds=limit, json=body)
        return str(made.json()["snapshotID"])

    async def _detail(self) -> Mapping[str, Any]:
        found: Mapping[str, Any] = (await self._request("GET", "", "describe a sandbox")).json()
        if not self.backend.marks.items() <= (found.get("metadata") or {}).items():
            raise no_sandbox(self.id)
        return found

    async def _request(self, method: str, path: str, what: str, **options: Any) -> httpx.Response:
        path = f"/sandboxes/{self._existing_id()}{path}"
        return await self.backend.account.call(method, path, what, sandbox_id=self.id, **options)

    def _headers(self) -> dict[str, str]:
        root = base64.b64encode(b"root:").decode()
        access = {"X-Access-Token": self.token, "Authorization": f"Basic {root}"}
        sandbox = {"E2b-Sandbox-Id": self.id, "E2b-Sandbox-Port": "49983"}
        return {"Connect-Protocol-Version": "1", "Keepalive-Ping-Interval": "20"} | sandbox | access


class OwnE2BProvider(VendorProvider[OwnBox, OwnAccount]):
    """Sandboxes of the server; an image is the name or id of a template."""

    name: ClassVar[str] = NAME
    box_type: ClassVar[type[Box]] = OwnBox
    rules: ClassVar = (*never(_REFUSED), *STRICT, *UNICODE)
    longest: ClassVar[int] = 24 * 3600
    marks: ClassVar[Mapping[str, str]] = {"sandboxkit.own-e2b": "1"}
    default_image: ClassVar[str] = "base"
    isolation: ClassVar[str] = "that of the server"

    def __init__(self, *, timeout: float = 60.0) -> None:
        """`timeout` limits a creation (s)."""
        super().__init__(OwnAccount(timeout))

    async def _create(self, spec: SandboxSpec, key: str) -> OwnBox:
        template = spec.snapshot or self._image_of(spec)
        body = {
            "templateID": template,
            "timeout": self.seconds(spec.lifetime),
            "allow_internet_access": spec.network == "internet",
            "metadata": {**self.tags_of(spec), _KEY_TAG: key},
            "secure": True,
            "autoPause": False,
        }
        what, limit = f"create a sandbox from template {template!r}", self.account.timeout
        made = (
            await self.account.call("POST", "/sandboxes", what, seconds=limit, json=body)
        ).json()
        box = self.box(made["sandboxID"])
        box.token = made["envdAccessToken"]
        return box

    async def _created(self, key: str) -> Sequence[OwnBox]:
        return [self.box(info.id) async for info in self.list({_KEY_TAG: key})]

    async def _listed(self, tags: Mapping[str, str]) -> AsyncIterator[SandboxInfo]:
        plain = {k: v for k, v in tags.items() if v and urllib.parse.quote(k + v) == k + v}
        wanted = {"metadata": urllib.parse.urlencode(plain)}
        async for found in self._pages("/v2/sandboxes", "list sandboxes", wanted):
            yield _info(found)

    async def _snapshot_ids(self) -> AsyncIterator[str]:
        async for found in self._pages("/snapshots", "list snapshots", {}):
            yield found["snapshotID"]

    async def snapshot_there(self, name: str, reference: str | None) -> str | None:
        async for found in self._pages("/snapshots", "list snapshots", {"name": name}):
            return str(found["snapshotID"])
        return None

    async def remove_snapshot(self, reference: str) -> None:
        path = f"/templates/{urllib.parse.quote(reference, safe='')}"
        with suppress(SandboxNotFoundError):
            await self.account.call("DELETE", path, "remove a snapshot", sandbox_id=reference)

    async def _reached(self) -> tuple[str, str]:
        await self.account.call("GET", "/v2/sandboxes", "list sandboxes", params={"limit": 1})
        return self.isolation, f"the key works at {os.environ['E2B_API_URL']}"

    async def _pages(
        self, path: str, what: str, wanted: Mapping[str, str]
    ) -> AsyncIterator[Mapping[str, Any]]:
        query: dict[str, str | int] = {**wanted, "limit": _PAGE}
        while True:
            answer = await self.account.call("GET", path, what, params=query)
            for found in answer.json():
                yield found
            query["nextToken"] = answer.headers.get("x-next-token", "")
            if not query["nextToken"]:
                return


def _info(found: Mapping[str, Any]) -> SandboxInfo:
    return SandboxInfo(
        id=found["sandboxID"],
        provider=NAME,
        state=SandboxState(found["state"]),
        tags=found.get("metadata") or {},
        image=found["templateID"],
        created_at=datetime.fromisoformat(found["startedAt"]),
        expires_at=datetime.fromisoformat(found["endAt"]),
    )


def _daemon() -> str:
    return f"{os.environ['E2B_SANDBOX_URL']}/process.Process"


async def _raise_status(response: httpx.Response) -> None:
    if response.status_code >= 300:
        await response.aread()
        raise httpx.HTTPStatusError("", request=response.request, response=response)

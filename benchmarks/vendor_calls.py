"""The calls of E2B's and Daytona's SDKs that only the measurements of those SDKs make, for the emulators.

The emulators serve them with this module's name as an option.
"""

import asyncio
import contextlib
import json
import re
import secrets
import urllib.parse
from typing import Any

from connectrpc.code import Code
from connectrpc.codec import proto_binary_codec
from connectrpc.errors import ConnectError
from daytona_toolbox_api_client_async import (
    ExecuteRequest,
    ExecuteResponse,
    FileInfo,
    UploadedFile,
)
from e2b.envd.client_shared import ENVD_JSON_CODEC
from e2b.envd.filesystem import filesystem_pb as pb
from e2b.envd.filesystem.filesystem_connect import Filesystem, FilesystemASGIApplication

from tests.emulators._engine import Process
from tests.emulators._serving import HttpEmulator, RefusedError, body_of, respond
from tests.faults.asgi import App, Message, Receive, Send

Answer = tuple[int, Any]
_SAVE = 'mkdir -p -- "$(dirname -- "$1")" && cat >"$1"'
_DAYTONA_LIST = 'cd -- "$1" && find . -mindepth 1 -maxdepth 1 -printf "%f\\t%s\\t%y\\t%M\\t%u\\t%g\\t%TFT%TTZ\\n"'
_PATH = re.compile(rb'name="files\[0\]\.path"\r\n\r\n(.*?)\r\n', re.DOTALL)
_LIST = 'cd -- "$1" && find . -mindepth 1 -maxdepth 1 -printf "%f\\t%s\\t%y\\t%m\\t%M\\t%u\\t%g\\n"'
_KINDS = {"d": pb.FileType.DIRECTORY, "f": pb.FileType.FILE}
_DEFAULT_TIMEOUT = 360


def extend(emulator: HttpEmulator) -> None:
    """Let an emulator serve these calls as well."""
    inner, boxes = emulator.app, emulator.boxes
    codecs = [proto_binary_codec(), ENVD_JSON_CODEC]
    filesystem = FilesystemASGIApplication(Files(boxes), codecs=codecs)

    async def read(scope: Message, receive: Receive, send: Send) -> None:
        headers = {name: value.decode() for name, value in scope["headers"]}
        path = dict(urllib.parse.parse_qsl(scope["query_string"].decode()))["path"]
        argv = ("cat", "--", path)
        status, content = await _output(boxes.alive[headers[b"e2b-sandbox-id"]], argv)
        assert status == 0, path
        await respond(send, 200, content)

    async def toolbox(scope: Message, receive: Receive, send: Send) -> None:
        box = boxes.alive[scope["path"].split("/")[2]]
        body = await body_of(receive)
        if scope["path"].endswith("/bulk-download"):
            await download_form(box, body, send)
        elif scope["path"].endswith("/bulk-upload"):
            await respond(send, *await upload_form(box, body))
        elif scope["path"].endswith("/execute"):
            request = ExecuteRequest.from_dict(json.loads(body))
            assert request is not None
            await respond(send, *await execute(box, request))
        else:
            query = dict(urllib.parse.parse_qsl(scope["query_string"].decode()))
            await respond(send, *await listing(box, query["path"]))

    def app(scope: Message) -> App:
        if scope["path"].startswith("/filesystem."):
            return filesystem
        if (scope.get("method"), scope["path"]) == ("GET", "/files"):
            return read
        if re.match(r"/toolbox/[^/]*/(files|process/execute)", scope["path"]):
            return toolbox
        return inner(scope)

    emulator.app = app  # type: ignore[method-assign]  # only here


class Files(Filesystem):
    """The filesystem service. A header has the sandbox's id. All calls but `list_dir` are UNIMPLEMENTED."""

    def __init__(self, boxes: Any) -> None:
        self._boxes = boxes

    async def list_dir(self, request: pb.ListDirRequest, ctx: Any) -> pb.ListDirResponse:
        box = self._boxes.alive[ctx.request_headers.get("e2b-sandbox-id", "")]
        status, said = await _output(box, ("sh", "-c", _LIST, "sh", request.path))
        if status:
            raise ConnectError(Code.NOT_FOUND, f"path not found: {request.path}")
        lines = [line.split("\t") for line in said.decode().splitlines()]
        return pb.ListDirResponse(entries=[_entry(line, request.path) for line in lines])


def _entry(fields: list[str], folder: str) -> pb.EntryInfo:
    name, size, kind, mode, permissions, owner, group = fields
    return pb.EntryInfo(
        name=name,
        type=_KINDS.get(kind, pb.FileType.UNSPECIFIED),
        path=f"{folder.rstrip('/')}/{name}",
        size=int(size),
        mode=int(mode, 8),
        permissions=permissions,
        owner=owner,
        group=group,
    )


async def _output(box: Any, argv: tuple[str, ...]) -> tuple[int, bytes]:
    process = await box.machine.spawn(argv, env={}, cwd="/")
    await process.close_stdin()
    said = b"".join([chunk async for chunk in process.stdout])
    return await process.wait(), said


async def upload_form(box: Any, body: bytes) -> Answer:
    """Save the only file of a form, as the SDK sends it: its path in a field, then its content."""
    boundary, _, _ = body.partition(b"\r\n")
    found = _PATH.search(body)
    if found is None:
        raise RefusedError(400, "this emulator takes one file a form")
    _, _, rest = body[found.end() :].partition(b"\r\n\r\n")
    content = rest[: rest.rindex(b"\r\n" + boundary)]
    path = found[1].decode()
    process = await box.machine.spawn(("sh", "-c", _SAVE, "sh", path), env={}, cwd="/")
    if content:
        await process.write(content)
    await process.close_stdin()
    _, file = await _saved(process, path)
    return 200, [file]


async def _saved(process: Process, path: str) -> Answer:
    output = b"".join([chunk async for chunk in process.stderr])
    if await process.wait():
        raise RefusedError(400, output.decode(errors="replace"))
    name = path.rpartition("/")[2]
    return 200, UploadedFile(name=name, path=path, type="file").to_dict()


async def download_form(box: Any, body: bytes, send: Send) -> None:
    """Send the requested file as a multipart form."""
    (path,) = json.loads(body)["paths"]
    process = await box.machine.spawn(("cat", "--", path), env={}, cwd="/")
    boundary = secrets.token_hex(30)
    kind = (b"content-type", f"multipart/form-data; boundary={boundary}".encode())
    await send({"type": "http.response.start", "status": 200, "headers": [kind]})
    head = f'--{boundary}\r\nContent-Disposition: form-data; name="file"; filename="{path}"\r\n\r\n'
    await _send(send, head.encode())
    async for chunk in process.stdout:
        await _send(send, chunk)
    if await process.wait():
        raise RefusedError(400, f"this emulator sends no part for {path}, which cannot be read")
    await _send(send, f"\r\n--{boundary}--\r\n".encode())
    await send({"type": "http.response.body", "body": b""})


async def _send(send: Send, data: bytes) -> None:
    await send({"type": "http.response.body", "body": data, "more_body": True})


async def listing(box: Any, path: str) -> Answer:
    """Return the entries of a folder."""
    process = await box.machine.spawn(("sh", "-c", _DAYTONA_LIST, "sh", path), env={}, cwd="/")
    said = b"".join([chunk async for chunk in process.stdout]).decode()
    if await process.wait():
        raise RefusedError(404, "path does not exist")
    return 200, [_info(line.split("\t"), path) for line in said.splitlines()]


def _info(fields: list[str], folder: str) -> dict[str, Any]:
    name, size, kind, mode, owner, group, modified = fields
    return FileInfo(
        name=name,
        path=f"{folder.rstrip('/')}/{name}",
        size=int(size),
        is_dir=kind == "d",
        mode=mode,
        permissions=mode,
        owner=owner,
        group=group,
        mod_time=modified,
        modified_at=modified,
    ).to_dict()


async def execute(box: Any, asked: ExecuteRequest) -> Answer:
    process = await box.machine.spawn(
        ("sh", "-c", 'cd -- "$1" || exit 200; exec 2>&1; exec bash', "sh", asked.cwd or "/"),
        env=asked.envs or {},
    )

    async def run() -> tuple[int, bytes]:
        with contextlib.suppress(BrokenPipeError):
            await process.write(asked.command.encode() + b"\n")
        await process.close_stdin()
        output = b"".join([chunk async for chunk in process.stdout])
        return await process.wait(), output

    try:
        code, output = await asyncio.wait_for(run(), asked.timeout or _DEFAULT_TIMEOUT)
    except TimeoutError:
        await process.kill()
        raise RefusedError(408, "command execution timeout") from None
    text = output.decode(errors="replace")
    return 200, ExecuteResponse(exit_code=-1 if code in (200, -9) else code, result=text).to_dict()

"""The toolbox's file calls: whole files as raw bytes, files in multipart forms, and listings."""

import json
import re
import secrets
from typing import Any

from daytona_toolbox_api_client_async import FileInfo, UploadedFile

from tests.emulators._engine import Process
from tests.emulators._serving import RefusedError
from tests.emulators.daytona._boxes import Answer, Box
from tests.faults.asgi import Message, Receive, Send

_SAVE = 'mkdir -p -- "$(dirname -- "$1")" && cat >"$1"'
_LIST = 'cd -- "$1" && find . -mindepth 1 -maxdepth 1 -printf "%f\\t%s\\t%y\\t%M\\t%u\\t%g\\t%TFT%TTZ\\n"'
_PATH = re.compile(rb'name="files\[0\]\.path"\r\n\r\n(.*?)\r\n', re.DOTALL)
_LOAD = '[ -e "$1" ] || exit 44; [ ! -d "$1" ] || exit 45; stat -L -c %s -- "$1" && cat -- "$1"'


async def upload(box: Box, path: str, scope: Message, receive: Receive) -> Answer:
    """Save the request's body piece by piece; overwrites an existing file."""
    kind = dict(scope["headers"]).get(b"content-type")
    if kind != b"application/octet-stream":
        raise RefusedError(400, f"this emulator takes raw bodies alone, not {kind!r}")
    assert box.machine is not None
    process = await box.machine.spawn(("sh", "-c", _SAVE, "sh", path), env={}, cwd="/")
    try:
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise RefusedError(400, "unexpected EOF")
            if message.get("body"):
                await process.write(message["body"])
            if not message.get("more_body"):
                break
    except BrokenPipeError:
        pass  # the process has ended; its output has the reason
    finally:
        await process.close_stdin()
    return await _saved(process, path)


async def upload_form(box: Box, body: bytes) -> Answer:
    """Save the only file of a form, as the SDK sends it: its path in a field, then its content."""
    boundary, _, _ = body.partition(b"\r\n")
    found = _PATH.search(body)
    if found is None:
        raise RefusedError(400, "this emulator takes one file a form")
    _, _, rest = body[found.end() :].partition(b"\r\n\r\n")
    content = rest[: rest.rindex(b"\r\n" + boundary)]
    path = found[1].decode()
    assert box.machine is not None
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


async def download_form(box: Box, body: bytes, send: Send) -> None:
    """Send the requested file as a multipart form."""
    (path,) = json.loads(body)["paths"]
    assert box.machine is not None
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


async def listing(box: Box, path: str) -> Answer:
    """Return the entries of a folder."""
    assert box.machine is not None
    process = await box.machine.spawn(("sh", "-c", _LIST, "sh", path), env={}, cwd="/")
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


async def download(box: Box, path: str, send: Send) -> None:
    """Send a file's bytes, with its size in the headers."""
    assert box.machine is not None
    process = await box.machine.spawn(("sh", "-c", _LOAD, "sh", path), env={}, cwd="/")
    head, begun = b"", False
    async for chunk in process.stdout:
        if not begun:
            head += chunk
            if b"\n" not in head:
                continue
            size, _, chunk = head.partition(b"\n")
            kind = (b"content-type", b"application/octet-stream")
            headers = [kind, (b"content-length", size)]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            begun = True
        if chunk:
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
    code = await process.wait()
    if not begun:
        raise {
            44: RefusedError(404, "file not found"),
            45: RefusedError(400, "path must be a file"),
        }.get(code, RefusedError(403, "permission denied"))
    await send({"type": "http.response.body", "body": b""})

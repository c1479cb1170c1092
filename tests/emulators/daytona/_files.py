"""The toolbox's files: whole ones, uploaded and downloaded as raw bytes."""

from daytona_toolbox_api_client_async import UploadedFile

from tests.emulators._faults import Message, Receive, Send
from tests.emulators.daytona._answers import Answer, RefusedError
from tests.emulators.daytona._boxes import Box

_SAVE = 'mkdir -p -- "$(dirname -- "$1")" && cat >"$1"'
_LOAD = '[ -e "$1" ] || exit 44; [ ! -d "$1" ] || exit 45; stat -L -c %s -- "$1" && cat -- "$1"'


async def upload(box: Box, path: str, scope: Message, receive: Receive) -> Answer:
    """Save the request's body as it comes; what was there is overwritten."""
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
        pass  # it has said why
    finally:
        await process.close_stdin()
    said = b"".join([chunk async for chunk in process.stderr])
    if await process.wait():
        raise RefusedError(400, said.decode(errors="replace"))
    name = path.rpartition("/")[2]
    return 200, UploadedFile(name=name, path=path, type="file").to_dict()


async def download(box: Box, path: str, send: Send) -> None:
    """Send a file's bytes; its size comes first."""
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

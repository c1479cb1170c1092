"""The daemon's file calls in each sandbox: whole files over HTTP, and listings by its filesystem service."""

import urllib.parse
from typing import Any

from connectrpc.code import Code
from connectrpc.errors import ConnectError
from e2b.envd.filesystem import filesystem_pb as pb
from e2b.envd.filesystem.filesystem_connect import Filesystem

from tests.emulators._serving import body_of, respond
from tests.emulators.e2b._boxes import Box, Boxes
from tests.faults.asgi import Message, Receive, Send

_LIST = 'cd -- "$1" && find . -mindepth 1 -maxdepth 1 -printf "%f\\t%s\\t%y\\t%m\\t%M\\t%u\\t%g\\n"'
_KINDS = {"d": pb.FileType.DIRECTORY, "f": pb.FileType.FILE}


class Files(Filesystem):
    """The filesystem service. A header has the sandbox's id. All calls but `list_dir` are UNIMPLEMENTED."""

    def __init__(self, boxes: Boxes) -> None:
        self._boxes = boxes

    async def list_dir(self, request: pb.ListDirRequest, ctx: Any) -> pb.ListDirResponse:
        box = self._boxes.alive[ctx.request_headers.get("e2b-sandbox-id", "")]
        status, said = await _output(box, ("sh", "-c", _LIST, "sh", request.path))
        if status:
            raise ConnectError(Code.NOT_FOUND, f"path not found: {request.path}")
        lines = [line.split("\t") for line in said.decode().splitlines()]
        return pb.ListDirResponse(entries=[_entry(line, request.path) for line in lines])


class FilesOverHttp:
    """An ASGI application: GET and POST of one file at /files."""

    def __init__(self, boxes: Boxes) -> None:
        self._boxes = boxes

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        headers = {name: value.decode() for name, value in scope["headers"]}
        box = self._boxes.alive[headers[b"e2b-sandbox-id"]]
        query = dict(urllib.parse.parse_qsl(scope["query_string"].decode()))
        assert query.keys() <= {"path", "username"}, query
        path = query["path"]
        if scope["method"] == "GET":
            content: object
            status, content = await _output(box, ("cat", "--", path))
        else:
            body = await body_of(receive)
            boundary, _, rest = body.partition(b"\r\n")
            _, _, rest = rest.partition(b"\r\n\r\n")
            data = rest[: rest.rindex(b"\r\n" + boundary)]
            status = await box.machine.write(path, data)
            content = [{"name": path.rpartition("/")[2], "path": path, "type": "file"}]
        if status:
            await respond(send, 404, {"message": f"path '{path}' does not exist"})
        else:
            await respond(send, 200, content)


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


async def _output(box: Box, argv: tuple[str, ...]) -> tuple[int, bytes]:
    process = await box.machine.spawn(argv, env={}, cwd="/")
    await process.close_stdin()
    said = b"".join([chunk async for chunk in process.stdout])
    return await process.wait(), said

"""The daemon's call that writes a whole file over HTTP."""

import urllib.parse

from tests.emulators._serving import body_of, respond
from tests.emulators.e2b._boxes import Boxes
from tests.faults.asgi import Message, Receive, Send


class FilesOverHttp:
    """An ASGI application: POST of one file at /files."""

    def __init__(self, boxes: Boxes) -> None:
        self._boxes = boxes

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        headers = {name: value.decode() for name, value in scope["headers"]}
        box = self._boxes.alive[headers[b"e2b-sandbox-id"]]
        query = dict(urllib.parse.parse_qsl(scope["query_string"].decode()))
        assert query.keys() <= {"path", "username"}, query
        assert scope["method"] == "POST"
        path, body = query["path"], await body_of(receive)
        boundary, _, rest = body.partition(b"\r\n")
        _, _, rest = rest.partition(b"\r\n\r\n")
        if await box.machine.write(path, rest[: rest.rindex(b"\r\n" + boundary)]):
            await respond(send, 404, {"message": f"path '{path}' does not exist"})
        else:
            await respond(
                send, 200, [{"name": path.rpartition("/")[2], "path": path, "type": "file"}]
            )

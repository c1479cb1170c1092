"""What the emulators have in common: their socket, the tests' control requests, and plain HTTP."""

import asyncio
import faulthandler
import importlib
import inspect
import json
import os
import socket
import sys
import traceback
from typing import Any

import uvicorn

from tests.faults.asgi import App, Faults, Message, Receive, Send

_END_SECONDS = 20.0
"""Seconds after which a process that hangs at its end dumps its stack and exits."""


class RefusedError(Exception):
    """Raised to respond to the request with this status and message."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


def listening() -> socket.socket:
    """Return a listening socket on a free loopback port."""
    # IPPROTO_TCP is given explicitly: only then does asyncio set TCP_NODELAY, as the real servers do.
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.bind(("127.0.0.1", 0))
    listener.listen(512)
    return listener


def url_of(listener: socket.socket) -> str:
    return f"http://127.0.0.1:{listener.getsockname()[1]}"


async def obey(url: str, *parts: object) -> None:
    """Print the address and answer control requests, one line of JSON each, until stdin is closed.

    A request names a method of the first of `parts` that has it, and its arguments. Open requests are not
    waited for.
    """
    _say(url)
    lines = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(lines), sys.stdin
    )
    while line := await lines.readline():
        name, arguments = json.loads(line)
        methods = [getattr(part, name, None) for part in parts]
        result = next(filter(callable, methods))(**arguments)
        _say(json.dumps(await result if inspect.isawaitable(result) else result))
    faulthandler.dump_traceback_later(_END_SECONDS, exit=True)


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


class Emulator:
    """What the tests may ask of each emulator."""

    # Any: each vendor's sandboxes, settings and faults.
    def __init__(self, boxes: Any, settings: Any, faults: Any, requests: list[str]) -> None:
        self.boxes, self.settings, self.faults = boxes, settings, faults
        self.violations: list[str] = []
        self.requests = requests

    async def clear(self) -> None:
        """Take back everything that was planned or set."""
        self.faults.clear()
        self.settings.__init__()
        self.requests.clear()

    async def set(self, **settings: Any) -> None:
        """Change settings until `clear`."""
        for name, value in settings.items():
            assert hasattr(self.settings, name), name
            setattr(self.settings, name, value)

    async def state(self) -> dict[str, Any]:
        """Return what has been seen, and what runs."""
        alive = list(self.boxes.alive)
        return {"violations": self.violations, "alive": alive, "requests": self.requests}


class HttpEmulator(Emulator):
    """The ASGI application of a vendor with planned faults."""

    wrong: tuple[type[Exception], ...] = (AssertionError,)
    """Errors in the emulator's own code that say that a request was none of the vendor's."""

    def __init__(self, boxes: Any, settings: Any) -> None:
        faults = Faults(self._serve, boxes.kill_all)
        super().__init__(boxes, settings, faults, faults.requests)
        self.config = uvicorn.Config(
            self,
            log_level="critical",
            lifespan="off",
            ws="wsproto",
            timeout_graceful_shutdown=1,
            timeout_keep_alive=75,  # (s) as load balancers have it, longer than the SDKs' clients
        )

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        await self.faults(scope, receive, send)

    def app(self, scope: Message) -> App:
        """Return the part of the vendor that answers a request."""
        raise NotImplementedError

    async def _serve(self, scope: Message, receive: Receive, send: Send) -> None:
        try:
            await self.app(scope)(scope, receive, send)
        except self.wrong:
            self.violations.append(traceback.format_exc())
            raise


def serve(make: type[HttpEmulator]) -> None:
    """Run an emulator until stdin is closed. Requests are not waited for, since one may never end."""

    async def run() -> None:
        emulator = make()  # type: ignore[call-arg]  # each vendor's has no arguments
        for module in (each for each in sys.argv[1:] if each.startswith("benchmarks.")):
            importlib.import_module(module).extend(emulator)
        with listening() as listener:
            server = uvicorn.Server(emulator.config)
            serving = asyncio.create_task(server.serve(sockets=[listener]))
            await obey(url_of(listener), emulator, emulator.faults, emulator.boxes)
            server.should_exit = server.force_exit = True
            await serving
            await emulator.boxes.aclose()
        os._exit(0)  # does not wait for threads

    asyncio.run(run())


async def body_of(receive: Receive) -> bytes:
    parts: list[bytes] = []
    while True:
        message = await receive()
        parts.append(bytes(message.get("body", b"")))
        if not message.get("more_body"):
            return b"".join(parts)


async def respond(
    send: Send, status: int, content: object, headers: dict[str, str] | None = None
) -> None:
    """Send a whole response: text and bytes as they are, None as nothing, all else as JSON."""
    kind = "text/plain; charset=utf-8" if isinstance(content, str) else "application/json"
    if isinstance(content, bytes):
        body = content
    elif content is None:
        body = b""
    else:
        body = (content if isinstance(content, str) else json.dumps(content)).encode()
    fields = {"content-type": kind, "content-length": str(len(body)), **(headers or {})}
    raw = [(name.encode(), value.encode()) for name, value in fields.items()]
    await send({"type": "http.response.start", "status": status, "headers": raw})
    await send({"type": "http.response.body", "body": body})

"""An ASGI middleware that bounds the bodies of requests."""

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send


class BodyLimit:
    """Answers 413 to a request whose body is too long, as soon as that is known."""

    def __init__(self, app: ASGIApp, max_body: int) -> None:
        self._app, self._max = app, max_body

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on to the application."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        declared = dict(scope["headers"]).get(b"content-length", b"0")
        got = int(declared) if declared.isdigit() else 0
        if got <= self._max:
            got, body = 0, []
            while True:  # a handler reads the whole body in any case
                message = await receive()
                got += len(message.get("body", b""))
                body.append(message)
                if got > self._max or not message.get("more_body"):
                    break
        if got > self._max:
            detail = f"the body is longer than {self._max} bytes"
            answer = JSONResponse({"detail": detail}, 413, {"connection": "close"})
            await answer(scope, receive, send)
            return
        body.reverse()

        async def again() -> Message:
            return body.pop() if body else await receive()

        await self._app(scope, again, send)

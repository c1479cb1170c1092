"""The server in an image: it counts steps. OpenEnv's package, of 500 MB, is not in the sandbox; its messages are."""

import json
import os
from typing import Any


# Any: the messages of ASGI.
async def app(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] == "http":
        body = json.dumps({"status": "healthy"}).encode()
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": body})
        return
    if scope["type"] != "websocket":
        return
    await send({"type": "websocket.accept"})
    steps = 0
    while (message := await receive())["type"] != "websocket.disconnect":
        if message["type"] == "websocket.receive":
            steps = 0 if json.loads(message["text"])["type"] == "reset" else steps + 1
            seen = {"steps": steps, "greeting": os.environ.get("GREETING")}
            data = {"observation": seen, "reward": None, "done": False}
            await send(
                {
                    "type": "websocket.send",
                    "text": json.dumps({"type": "observation", "data": data}),
                }
            )

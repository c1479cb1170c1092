"""Run an agent in a sandbox without a network: it reaches its model, and nothing else.

The model here is a function of this program. With a real one, give `serve` its address, as in
`sandbox.serve(8001, "127.0.0.1:8000")` for a server of vLLM. If it needs a key, `Credential` in
docs/guides/egress.md adds it on this side.
"""

import asyncio
import json

from sandboxkit import Session
from sandboxkit.tunnels import PortConnection

AGENT = """
import json, urllib.error, urllib.request
messages = [{"role": "user", "content": "Which command lists files?"}]
body = json.dumps({"messages": messages}).encode()
url = "http://127.0.0.1:8001/v1/chat/completions"
with urllib.request.urlopen(urllib.request.Request(url, body)) as answer:
    print("the model:", json.load(answer)["choices"][0]["message"]["content"])
try:
    urllib.request.urlopen("http://192.0.2.1/", timeout=5)
except OSError:
    print("nothing else is reached")
"""


async def model(connection: PortConnection) -> None:
    """Answer one request of the OpenAI API, as a model would."""
    request = b""
    while b"\r\n\r\n" not in request:
        request += await connection.receive()
    head, _, body = request.partition(b"\r\n\r\n")
    fields = (line.partition(b":") for line in head.lower().split(b"\r\n"))
    (length,) = (int(value) for name, _, value in fields if name == b"content-length")
    while len(body) < length:
        body += await connection.receive()
    question = json.loads(body)["messages"][-1]["content"]
    reply = {"role": "assistant", "content": f"ls ({len(question)} characters were asked)"}
    answer = json.dumps({"choices": [{"message": reply}]}).encode()
    start = f"HTTP/1.1 200 OK\r\nContent-Length: {len(answer)}\r\nConnection: close\r\n\r\n"
    await connection.send(start.encode() + answer)


async def main() -> None:
    async with (
        Session(network="none") as session,
        session.sandbox() as sandbox,
        await sandbox.serve(8001, model),
    ):
        print((await sandbox.exec(["python3", "-c", AGENT])).stdout, end="")


asyncio.run(main())

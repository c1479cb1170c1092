"""A server with the answers that a real API server cannot be made to give when a test wants them."""

import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from aiohttp import web

from sandboxkit.providers.kubernetes._api import Api
from tests.data_here import beside

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(slots=True)
class Answers:
    """Answers each request with what `answer` makes of it, and notes its query."""

    answer: Answer
    server: str = ""
    asked: list[dict[str, str]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        self.asked.append(dict(request.query))
        self.headers.append(dict(request.headers))
        return await self.answer(request)


@asynccontextmanager
async def answering(
    answer: Answer, folder: Path, *, timeout: float = 20, **user: Any
) -> AsyncIterator[tuple[Answers, Api]]:
    """Such a server, and ours for it; `user` is the kubeconfig's user."""
    answers = Answers(answer)
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", answers._handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    answers.server = f"http://127.0.0.1:{runner.addresses[0][1]}"
    api = Api(kubeconfig=str(kubeconfig(folder, answers.server, **user)), timeout=timeout)
    try:
        yield answers, api
    finally:
        await api.aclose()
        await runner.cleanup()


def kubeconfig(folder: Path, server: str, *, namespace: str = "here", **user: Any) -> Path:
    """A kubeconfig of one context with a namespace."""
    path = folder / "kubeconfig"
    config = beside(__file__, "kubeconfig.json")
    config["contexts"][0]["context"]["namespace"] = namespace
    config["clusters"][0]["cluster"]["server"] = server
    config["users"][0]["user"] = user
    path.write_text(json.dumps(config))
    return path


def status(code: int, reason: str, message: str, **more: Any) -> web.Response:
    """A refusal as the API server words it."""
    body = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure"}
    said = {"message": message, "reason": reason, "code": code}
    return web.json_response(body | said | more, status=code)

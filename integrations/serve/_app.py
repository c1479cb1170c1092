"""The application: its routes, and what all requests share."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable
from typing import Annotated, Any, TypeVar

from fastapi import Depends, FastAPI, Header, HTTPException, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse

import sandboxkit
from sandboxkit import (
    CapacityError,
    CommandStartError,
    ConfigurationError,
    SandboxError,
    SandboxFileError,
    SandboxFileNotFoundError,
    SandboxNotFoundError,
)
from sandboxkit.integrations.serve import _fusion
from sandboxkit.integrations.serve._admission import BusyError
from sandboxkit.integrations.serve._config import ServiceConfig
from sandboxkit.integrations.serve._job import Job
from sandboxkit.integrations.serve._metrics import RecordRequests
from sandboxkit.integrations.serve._models import (
    ExecRequest,
    FusionRequest,
    GradeLine,
    GradeRequest,
    RunRequest,
    RunResult,
    SandboxRequest,
    ScoreRequest,
)
from sandboxkit.integrations.serve._replica import Replica
from sandboxkit.integrations.serve._tokens import Token, client_of

T = TypeVar("T")

_RETRY_AFTER = 5
"""Seconds after which a client may try again when the infrastructure failed."""


def create_app(config: ServiceConfig | None = None) -> FastAPI:
    """Return the ASGI application of one replica; its lifespan opens and closes the sessions."""
    config = config or ServiceConfig()
    replica = Replica(config)

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        await replica.open()
        try:
            yield
        finally:
            await replica.close()

    app = FastAPI(
        title="sandboxkit",
        version=sandboxkit.__version__,
        lifespan=lifespan,
        max_body_size=config.max_body,
    )
    app.add_middleware(RecordRequests, metrics=replica.metrics)
    _add_errors(app)

    app.state.tokens = config.tokens
    _add_grading(app, replica)
    _add_running(app, replica)
    _add_sandboxes(app, replica)
    _add_health(app, replica)
    return app


async def _client(request: Request, authorization: Annotated[str | None, Header()] = None) -> Token:
    found = client_of(request.app.state.tokens, authorization)
    if found is None:
        raise HTTPException(401, "give a valid token: 'Authorization: Bearer TOKEN'")
    return found


Client = Annotated[Token, Depends(_client)]


def _add_errors(app: FastAPI) -> None:
    @app.exception_handler(BusyError)
    async def busy(_: Request, error: BusyError) -> Response:
        return _error(429, error, error.retry_after)

    @app.exception_handler(SandboxError)
    async def failed(_: Request, error: SandboxError) -> Response:
        if isinstance(error, SandboxNotFoundError | SandboxFileNotFoundError):
            return _error(404, error)
        if isinstance(error, ConfigurationError | SandboxFileError):
            return _error(422, error)
        if isinstance(error, CommandStartError) and not error.retryable:
            return _error(422, error)
        if error.retryable or isinstance(error, CapacityError):
            return _error(503, error, _RETRY_AFTER)
        return _error(500, error)


def _error(status: int, error: Exception, retry_after: int | None = None) -> Response:
    headers = {} if retry_after is None else {"Retry-After": str(retry_after)}
    return JSONResponse({"detail": str(error), "error": type(error).__name__}, status, headers)


async def _while_connected(request: Request, work: Awaitable[T]) -> T:
    """Return the result of `work`, which is cancelled if the client goes away."""
    working = asyncio.ensure_future(work)

    async def watch() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass
        working.cancel()

    watching = asyncio.create_task(watch())
    try:
        return await working
    except asyncio.CancelledError:
        working.cancel()
        await asyncio.wait([working])
        if watching.done():
            raise HTTPException(499, "the client has gone") from None
        raise
    finally:
        watching.cancel()


async def _whole(request: Request, job: Job[T]) -> list[T]:
    """Return all results of a job, which is cancelled if all its clients go away."""

    async def collect() -> list[T]:
        async with contextlib.aclosing(job.follow()) as lines:
            return [line async for line in lines]

    return await _while_connected(request, collect())


def _add_grading(app: FastAPI, replica: Replica) -> None:
    @app.post("/v1/grade", response_model=GradeLine)
    async def grade(
        body: GradeRequest,
        client: Client,
        request: Request,
        idempotency_key: Annotated[str | None, Header()] = None,
    ) -> Response:
        """Grade submissions. The answer has a line of JSON for each, in the order they finish."""
        job = replica.grade(client, body, idempotency_key)
        lines = job.follow()
        # Waits for the first verdict, so that an error of the task becomes a status.
        first = await _while_connected(request, anext(lines))

        async def text() -> AsyncGenerator[str, None]:
            yield first.model_dump_json() + "\n"
            async for line in lines:
                yield line.model_dump_json() + "\n"

        return StreamingResponse(_closing(text(), lines), media_type="application/x-ndjson")

    @app.post("/v1/score")
    @app.post("/slime")  # slime's `--rm-url`, whose answer is the reward alone
    async def score(body: ScoreRequest, client: Client, request: Request) -> float:
        """Grade a completion and return its reward. 503: no reward, the infrastructure failed."""
        [line] = await _whole(request, replica.score(client, body))
        if line.reward is None:
            raise HTTPException(503, line.detail, {"Retry-After": str(_RETRY_AFTER)})
        return line.reward


async def _closing(
    text: AsyncGenerator[str, None], lines: AsyncGenerator[GradeLine, None]
) -> AsyncGenerator[str, None]:
    async with contextlib.aclosing(lines), contextlib.aclosing(text):
        async for line in text:
            yield line


def _add_running(app: FastAPI, replica: Replica) -> None:
    @app.post("/v1/run")
    async def run(
        body: RunRequest,
        client: Client,
        request: Request,
        idempotency_key: Annotated[str | None, Header()] = None,
    ) -> RunResult:
        """Run a Python program once. 503: the infrastructure failed, and nothing is known."""
        [result] = await _whole(request, replica.run(client, body, idempotency_key))
        if isinstance(result, str):
            raise HTTPException(503, result, {"Retry-After": str(_RETRY_AFTER)})
        return result

    @app.post("/run_code")
    async def run_code(
        body: FusionRequest, client: Client, request: Request
    ) -> dict[str, Any]:  # Any: JSON
        """Run a program as SandboxFusion's `/run_code` does. 504: busy, or the infrastructure failed."""
        wanted = _fusion.request_of(body)
        try:
            async with asyncio.timeout(_fusion.longest(body)):
                [result] = await _whole(request, replica.run(client, wanted, None))
        except BusyError as error:
            raise HTTPException(_fusion.AGAIN, str(error)) from error
        except TimeoutError as error:
            raise HTTPException(_fusion.AGAIN, "no sandbox was free in time") from error
        if isinstance(result, str):
            raise HTTPException(_fusion.AGAIN, result)
        return _fusion.answer(result)


def _add_sandboxes(app: FastAPI, replica: Replica) -> None:
    @app.post("/v1/sandboxes", status_code=201)
    async def create(body: SandboxRequest, client: Client, request: Request) -> dict[str, str]:
        """Start a sandbox and return its id. It is deleted if the client goes away meanwhile."""
        return {"id": await _while_connected(request, replica.sandboxes.create(client, body))}

    @app.get("/v1/sandboxes")
    async def listing(client: Client) -> list[dict[str, Any]]:
        """List the client's sandboxes."""
        return [dict(each) for each in await replica.sandboxes.of(client)]

    @app.post("/v1/sandboxes/{sandbox_id}/exec")
    async def execute(
        sandbox_id: str, body: ExecRequest, client: Client, request: Request
    ) -> RunResult:
        """Run a command to its end. It is killed if the client goes away."""
        [result] = await _whole(request, replica.exec(client, sandbox_id, body))
        return result

    @app.get("/v1/sandboxes/{sandbox_id}/files")
    async def read(sandbox_id: str, path: str, client: Client) -> Response:
        """Return the content of a file."""
        sandbox = await replica.sandboxes.find(client, sandbox_id)
        content = await sandbox.read_file(path)
        return Response(content, media_type="application/octet-stream")

    @app.put("/v1/sandboxes/{sandbox_id}/files", status_code=204)
    async def write(sandbox_id: str, path: str, request: Request, client: Client) -> None:
        """Write a file; the body is its content."""
        sandbox = await replica.sandboxes.find(client, sandbox_id)
        await sandbox.write_file(path, await request.body())

    @app.delete("/v1/sandboxes/{sandbox_id}", status_code=204)
    async def delete(sandbox_id: str, client: Client) -> None:
        """Delete a sandbox; an unknown id is no error."""
        await replica.sandboxes.delete(client, sandbox_id)


def _add_health(app: FastAPI, replica: Replica) -> None:
    @app.get("/healthz")
    async def healthy() -> dict[str, str]:
        """Return 200 while the process works."""
        return {"status": "ok"}

    @app.get("/readyz")
    async def ready() -> dict[str, str]:
        """Return 200 if a sandbox can be started, else 503 with the reason."""
        reason = await replica.not_ready()
        if reason:
            raise HTTPException(503, reason)
        return {"status": "ready"}

    @app.get("/metrics")
    async def metrics() -> Response:
        """Return metrics in Prometheus' text format."""
        return Response(replica.page(), media_type="text/plain; version=0.0.4")

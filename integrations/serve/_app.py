"""The ASGI application: its middleware and its routes."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Annotated, Any

from fastapi import FastAPI, Header, HTTPException, Request, Response
from fastapi.responses import StreamingResponse

import sandboxkit
from sandboxkit.integrations.serve import _fusion
from sandboxkit.integrations.serve._admission import RETRY_AFTER, BusyError
from sandboxkit.integrations.serve._bodies import reading
from sandboxkit.integrations.serve._config import ServiceConfig
from sandboxkit.integrations.serve._connected import closing, while_connected, whole
from sandboxkit.integrations.serve._errors import add_errors
from sandboxkit.integrations.serve._gate import EACH, Client, RequireToken
from sandboxkit.integrations.serve._lending import lending
from sandboxkit.integrations.serve._metrics import RecordRequests
from sandboxkit.integrations.serve._models import (
    FusionRequest,
    GradeLine,
    GradeRequest,
    RunRequest,
    RunResult,
    ScoreRequest,
)
from sandboxkit.integrations.serve._replica import Replica


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
    app.router.route_class = reading(replica.workers)
    app.add_middleware(
        RequireToken, tokens=config.tokens, most=2 * config.max_body + EACH * config.queue
    )
    app.add_middleware(RecordRequests, metrics=replica.metrics)
    add_errors(app)

    _add_grading(app, replica)
    _add_running(app, replica)
    app.include_router(lending(replica))
    _add_health(app, replica)
    return app


def _add_grading(app: FastAPI, replica: Replica) -> None:
    @app.post("/v1/grade", response_model=GradeLine)
    async def grade(
        body: GradeRequest,
        client: Client,
        request: Request,
        idempotency_key: Annotated[str | None, Header()] = None,
    ) -> Response:
        """Grade submissions. The response has a line of JSON for each, in the order in which they finish."""
        job = replica.grade(client, body, idempotency_key)
        lines = job.follow()
        # This waits for the first verdict, so that an error in the task becomes an HTTP status.
        first = await while_connected(request, anext(lines))

        async def text() -> AsyncGenerator[str, None]:
            yield first.model_dump_json() + "\n"
            async for line in lines:
                yield line.model_dump_json() + "\n"

        return StreamingResponse(closing(text(), lines), media_type="application/x-ndjson")

    @app.post("/v1/score")
    @app.post("/slime")  # for slime's `--rm-url`, which expects only the reward
    async def score(body: ScoreRequest, client: Client, request: Request) -> float:
        """Grade a completion and return its reward. 503: no reward, because the infrastructure failed."""
        [line] = await whole(request, await replica.score(client, body))
        if line.reward is None:
            raise HTTPException(503, line.detail, {"Retry-After": str(RETRY_AFTER)})
        return line.reward


def _add_running(app: FastAPI, replica: Replica) -> None:
    @app.post("/v1/run")
    async def run(
        body: RunRequest,
        client: Client,
        request: Request,
        idempotency_key: Annotated[str | None, Header()] = None,
    ) -> RunResult:
        """Run a program once. 503: no result, because the infrastructure failed."""
        [result] = await whole(request, replica.run(client, body, idempotency_key))
        if isinstance(result, str):
            raise HTTPException(503, result, {"Retry-After": str(RETRY_AFTER)})
        return result

    @app.post("/run_code")
    async def run_code(
        body: FusionRequest, client: Client, request: Request
    ) -> dict[str, Any]:  # Any: JSON
        """Run a program like SandboxFusion's `/run_code`. 504: the service is busy or its backend failed."""
        wanted = _fusion.request_of(body)
        try:
            async with asyncio.timeout(_fusion.longest(body)):
                [result] = await whole(request, replica.run(client, wanted, None))
        except BusyError as error:
            raise HTTPException(_fusion.RETRY_STATUS, str(error)) from error
        except TimeoutError as error:
            raise HTTPException(_fusion.RETRY_STATUS, "no sandbox was free in time") from error
        if isinstance(result, str):
            raise HTTPException(_fusion.RETRY_STATUS, result)
        return _fusion.response_of(result)


def _add_health(app: FastAPI, replica: Replica) -> None:
    @app.get("/healthz")
    async def healthy() -> dict[str, str]:
        """Return 200 while the process runs."""
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

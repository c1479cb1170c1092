"""The ASGI application: its middleware and its routes, and SandboxFusion's requests in terms of ours."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Annotated, Any

from fastapi import FastAPI, Header, HTTPException, Request, Response
from fastapi.responses import StreamingResponse

import sandboxkit
from sandboxkit import ConfigurationError
from sandboxkit.integrations.serve._admission import RETRY_AFTER, BusyError
from sandboxkit.integrations.serve._bodies import reading
from sandboxkit.integrations.serve._config import ServiceConfig
from sandboxkit.integrations.serve._connected import closing, while_connected, whole
from sandboxkit.integrations.serve._errors import add_errors
from sandboxkit.integrations.serve._gate import EACH, Client, RequireToken
from sandboxkit.integrations.serve._lending import lending
from sandboxkit.integrations.serve._metrics import RecordRequests
from sandboxkit.integrations.serve._models import (
    CompilerResult,
    FusionRequest,
    GradeLine,
    GradeRequest,
    RunRequest,
    RunResult,
    ScoreRequest,
)
from sandboxkit.integrations.serve._replica import Replica

_RETRY_STATUS = 504
"""The status after which the client retries the request."""
_PATIENCE = 8.0
"""Seconds to wait beyond the sum of a request's two timeouts; verl itself waits 10 s beyond it."""
_DATA = "/workspace/"


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
        wanted = _request_of(body)
        try:
            async with asyncio.timeout(_longest(body)):
                [result] = await whole(request, replica.run(client, wanted, None))
        except BusyError as error:
            raise HTTPException(_RETRY_STATUS, str(error)) from error
        except TimeoutError as error:
            raise HTTPException(_RETRY_STATUS, "no sandbox was free in time") from error
        if isinstance(result, str):
            raise HTTPException(_RETRY_STATUS, result)
        return _response_of(result)


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


def _request_of(body: FusionRequest) -> RunRequest:
    """Convert a SandboxFusion request to a RunRequest. Raises ConfigurationError for `fetch_files`.

    The language needs no conversion: `language_of` knows SandboxFusion's names.
    """
    if body.fetch_files:
        raise ConfigurationError("fetch_files: this service returns no files; print the content")
    files = {_path(name): content or b"" for name, content in body.files.items()}
    return RunRequest.model_construct(
        code=body.code,
        language=body.language,
        stdin=body.stdin or "",
        files=files,
        timeout=body.run_timeout,
        compile_timeout=body.compile_timeout,
        memory_mb=body.memory_limit_MB if body.memory_limit_MB > 0 else None,
    )


def _longest(body: FusionRequest) -> float:
    """Return the time limit of a request in seconds, shortly before the client's own timeout."""
    return body.compile_timeout + body.run_timeout + _PATIENCE


def _response_of(result: RunResult) -> dict[str, Any]:  # Any: JSON
    """Convert a program's result to SandboxFusion's response."""
    ran = result.outcome != "compile_error"
    finished = result.outcome == "exited"
    return {
        "status": "Success" if finished and result.returncode == 0 else "Failed",
        "message": result.detail,
        "compile_result": None if result.compiler is None else _compiled(result.compiler),
        "run_result": _ran(result) if ran else None,
        "executor_pod_name": None,
        "files": {},
    }


def _compiled(compiler: CompilerResult) -> dict[str, Any]:
    ended = "Finished" if compiler.returncode is not None else "Error"
    return {
        "status": "TimeLimitExceeded" if compiler.timed_out else ended,
        "execution_time": compiler.seconds,
        "return_code": compiler.returncode,
        "stdout": compiler.stdout,
        "stderr": compiler.stderr,
    }


def _ran(result: RunResult) -> dict[str, Any]:
    other = "TimeLimitExceeded" if result.outcome == "timeout" else "Error"
    return {
        "status": "Finished" if result.outcome == "exited" else other,
        "execution_time": result.seconds,
        "return_code": result.returncode,
        "stdout": result.stdout,
        "stderr": result.stderr or result.detail,
    }


def _path(name: str) -> str:
    return name if name.startswith("/") else _DATA + name

"""Converts requests and responses of SandboxFusion's `/run_code`, for verl's setting `sandbox_fusion.url`.

verl retries a request that gets status 504, and scores every other error as not passed, even its own
timeout. So the response is 504 when the service is busy, when the infrastructure failed, and shortly before
that timeout.
"""

from typing import Any

from sandboxkit import ConfigurationError
from sandboxkit.integrations.serve._models import (
    CompilerResult,
    FusionRequest,
    RunRequest,
    RunResult,
)

RETRY_STATUS = 504
"""The status after which the client retries the request."""
_PATIENCE = 8.0
"""Seconds to wait beyond the sum of a request's two timeouts; verl itself waits 10 s beyond it."""
_DATA = "/workspace/"


def request_of(body: FusionRequest) -> RunRequest:
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


def longest(body: FusionRequest) -> float:
    """Return the time limit of a request in seconds, shortly before the client's own timeout."""
    return body.compile_timeout + body.run_timeout + _PATIENCE


def response_of(result: RunResult) -> dict[str, Any]:  # Any: JSON
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

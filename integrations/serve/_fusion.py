"""SandboxFusion's `/run_code`: its request and answer, so that verl's `sandbox_fusion.url` works unchanged.

verl repeats a request that gets status 504 and scores every other error as not passed, its own timeout
included. So 504 is the answer when the service is busy, when the infrastructure failed, and shortly before
that timeout.
"""

from typing import Any

from sandboxkit import ConfigurationError
from sandboxkit.integrations.serve._models import FusionRequest, RunRequest, RunResult

AGAIN = 504
"""The status that asks the client to send the request again."""
_PATIENCE = 8.0
"""verl waits for 10 s beyond both timeouts of a request."""
_DATA = "/workspace/"


def request_of(body: FusionRequest) -> RunRequest:
    """Return our request for SandboxFusion's. Raises ConfigurationError for what is not supported."""
    if body.language != "python":
        raise ConfigurationError(f"language={body.language!r}: this service runs 'python'")
    if body.fetch_files:
        raise ConfigurationError("fetch_files: this service returns no files; print what you need")
    files = {_path(name): content or b"" for name, content in body.files.items()}
    return RunRequest.model_construct(
        code=body.code,
        stdin=body.stdin or "",
        files=files,
        timeout=body.run_timeout,
        memory_mb=body.memory_limit_MB if body.memory_limit_MB > 0 else None,
    )


def longest(body: FusionRequest) -> float:
    """Return how many seconds the client waits for an answer, with a margin."""
    return body.compile_timeout + body.run_timeout + _PATIENCE


def answer(result: RunResult) -> dict[str, Any]:  # Any: JSON
    """Return SandboxFusion's answer for the end of a program."""
    finished = result.outcome == "exited"
    run = {
        "status": "Finished" if finished else _status(result),
        "execution_time": result.seconds,
        "return_code": result.returncode,
        "stdout": result.stdout,
        "stderr": result.stderr or result.detail,
    }
    return {
        "status": "Success" if finished and result.returncode == 0 else "Failed",
        "message": result.detail,
        "compile_result": None,
        "run_result": run,
        "executor_pod_name": None,
        "files": {},
    }


def _status(result: RunResult) -> str:
    return "TimeLimitExceeded" if result.outcome == "timeout" else "Error"


def _path(name: str) -> str:
    return name if name.startswith("/") else _DATA + name

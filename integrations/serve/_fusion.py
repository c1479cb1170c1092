"""SandboxFusion's `/run_code`: its request and answer, so that verl's `sandbox_fusion.url` works unchanged.

verl repeats a request that gets status 504 and scores every other error as not passed, so 504 is the
answer when the service is busy or the infrastructure failed.
"""

from typing import Any

from sandboxkit import ConfigurationError
from sandboxkit.integrations.serve._models import FusionRequest, RunRequest, RunResult

AGAIN = 504
"""The status that asks the client to send the request again."""
_LANGUAGES = ("python", "pytest")
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

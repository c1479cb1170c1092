"""SandboxFusion's `/run_code`: its request and answer, so that verl's `sandbox_fusion.url` works unchanged.

verl repeats a request that gets status 504 and scores every other error as not passed, its own timeout
included. So 504 is the answer when the service is busy, when the infrastructure failed, and shortly before
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

AGAIN = 504
"""The status that asks the client to send the request again."""
_PATIENCE = 8.0
"""verl waits for 10 s beyond both timeouts of a request."""
_DATA = "/workspace/"


def request_of(body: FusionRequest) -> RunRequest:
    """Return our request for SandboxFusion's. Raises ConfigurationError for what is not supported.

    Its names of languages are among those that `language_of` knows.
    """
    if body.fetch_files:
        raise ConfigurationError("fetch_files: this service returns no files; print what you need")
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
    """Return how many seconds the client waits for an answer, with a margin."""
    return body.compile_timeout + body.run_timeout + _PATIENCE


def answer(result: RunResult) -> dict[str, Any]:  # Any: JSON
    """Return SandboxFusion's answer for the end of a program."""
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

"""The bodies of requests and responses; the OpenAPI description is generated from them."""

import base64
import binascii
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from sandboxkit import ProcessResult
from sandboxkit.integrations.rewards import Outcome, Verdict
from sandboxkit.integrations.serve._errors import encodable


def _decoded(value: object) -> object:
    """Decode base64 text; return other values unchanged. Raises ValueError for invalid base64."""
    if not isinstance(value, str):
        return value
    try:
        return base64.b64decode(value, validate=True)
    except binascii.Error as error:
        raise ValueError(f"not base64: {error}") from error


Base64 = Annotated[bytes, BeforeValidator(_decoded)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", allow_inf_nan=False)


def _refuse_halves(value: object, name: str = "") -> None:
    """Raise ValueError for text that UTF-8 cannot encode, at any depth; `name` is its place."""
    if isinstance(value, dict):
        for key, each in value.items():
            _refuse_halves(str(key), f"{name}.{encodable(str(key))}")
            _refuse_halves(each, f"{name}.{encodable(str(key))}")
    elif isinstance(value, list):
        for number, each in enumerate(value):
            _refuse_halves(each, f"{name}.{number}")
    elif isinstance(value, str) and encodable(value) != value:
        raise ValueError(f"{name.lstrip('.')} has half of a surrogate pair")


class _Encodable(BaseModel):
    """A request whose text goes into a sandbox as UTF-8."""

    @model_validator(mode="before")
    @classmethod
    def _check(cls, data: Any) -> Any:  # Any: JSON
        try:
            _refuse_halves(data)
        except RecursionError:
            raise ValueError("the body is nested too deeply") from None
        return data


class GradeRequest(_Strict):
    """A task and submissions for it."""

    task: dict[str, Any] = Field(description="The task, with the keys that the grader reads.")
    submissions: list[str] = Field(min_length=1, max_length=4096)
    extract: bool = Field(
        default=False,
        description="Whether the submissions are completions, from which the code is extracted.",
    )
    deadline: float | None = Field(
        default=None, gt=0, description="Time limit in seconds; the service's own applies as well."
    )


class GradeLine(BaseModel):
    """One line of the response: the verdict on the submission with this index."""

    index: int
    reward: float | None = Field(description="null: the infrastructure failed; mask the sample.")
    outcome: Outcome
    attributable_to: Literal["policy", "infra"]
    detail: str
    trust: Literal["isolated", "shared"]

    @classmethod
    def of(cls, index: int, verdict: Verdict) -> "GradeLine":
        """Return the line for a verdict."""
        return cls(
            index=index,
            reward=verdict.reward,
            outcome=verdict.outcome,
            attributable_to=verdict.attributable_to,
            detail=encodable(verdict.detail),
            trust=verdict.trust,
        )


class ScoreRequest(_Strict):
    """A completion and its task, for trainers that need only the reward."""

    prompt: Any = None
    response: str = Field(description="The completion.")
    label: dict[str, Any] | str = Field(description="The task, or its JSON.")


class RunRequest(_Strict, _Encodable):
    """A program to run once, in a clean sandbox without a network."""

    code: str
    language: str = Field(default="python", description="A name as for `Program`, such as cpp17.")
    stdin: str = ""
    files: dict[str, Base64] = Field(default_factory=dict, description="Path to base64 content.")
    timeout: float = Field(default=10.0, gt=0, le=600, description="CPU time limit in seconds.")
    compile_timeout: float = Field(
        default=30.0, gt=0, le=600, description="CPU time limit of the compiler in seconds."
    )
    memory_mb: int | None = Field(default=None, ge=1)


class CompilerResult(BaseModel):
    """How a compiler ended."""

    timed_out: bool = False
    returncode: int | None = Field(
        default=None, description="The exit status; null if it exceeded a limit."
    )
    stdout: str = ""
    stderr: str = ""
    seconds: float | None = None


class RunResult(BaseModel):
    """How a program ended."""

    outcome: Literal["exited", "timeout", "oom", "killed", "truncated", "compile_error"]
    returncode: int | None = Field(description="The exit status; null if it did not exit.")
    stdout: str = ""
    stderr: str = ""
    seconds: float | None = Field(default=None, description="Elapsed time from start to end.")
    detail: str = ""
    compiler: CompilerResult | None = Field(
        default=None, description="null: the language has no compiler."
    )

    @classmethod
    def of(cls, ended: ProcessResult | Verdict) -> "RunResult":
        """Return the response for a program's result, or for the verdict on a limit that it exceeded."""
        if isinstance(ended, Verdict):
            return cls.model_validate(
                {"outcome": ended.outcome.value, "returncode": None, "detail": ended.detail}
            )
        return cls(
            outcome="exited",
            returncode=ended.returncode,
            stdout=ended.stdout,
            stderr=ended.stderr,
            seconds=ended.duration,
            detail="the middle of its output was left out" if ended.truncated else "",
        )


class FusionRequest(_Encodable):
    """The body of SandboxFusion's `/run_code`."""

    model_config = ConfigDict(allow_inf_nan=False)

    code: str
    language: str
    stdin: str | None = ""
    compile_timeout: float = Field(default=10.0, gt=0, le=600)
    run_timeout: float = Field(default=10.0, gt=0, le=600)
    memory_limit_MB: int = -1
    files: dict[str, Base64 | None] = Field(default_factory=dict)
    fetch_files: list[str] = Field(default_factory=list)


class SandboxRequest(_Strict, _Encodable):
    """The options of a new sandbox, as far as the service's operator allows them."""

    image: str | None = None
    env: dict[str, str] = Field(default_factory=dict)
    secrets: dict[str, str] = Field(default_factory=dict, repr=False)
    files: dict[str, Base64] = Field(default_factory=dict)
    workdir: str | None = None
    user: str | None = None
    cpus: float | None = Field(default=None, gt=0)
    memory_mb: int | None = Field(default=None, ge=1)
    disk_mb: int | None = Field(default=None, ge=1)
    pids: int | None = Field(default=None, ge=1)
    gpu: str | None = None
    profile: Literal["standard", "strict"] | None = None
    network: Literal["none", "internet"] | None = None
    command: list[str] | None = None
    detach: bool = Field(default=False, description="Whether the sandbox outlives the service.")
    lifetime: float | None = Field(
        default=None,
        gt=0,
        description="Seconds, up to the service's maximum, which is the default.",
    )
    tags: dict[str, str] = Field(default_factory=dict)
    owned: bool = Field(
        default=False, description="Whether it ends a lease (60 s) after its owner's last link."
    )
    key: str | None = Field(
        default=None,
        max_length=64,
        description="Identifies this creation, so that it can be undone. With a key, a lifetime above the "
        "maximum is refused instead of reduced.",
    )


class RenewRequest(_Strict):
    """A new lifetime of a sandbox."""

    lifetime: float = Field(gt=0, description="Seconds from now.")


class ExecRequest(_Strict, _Encodable):
    """A command for a sandbox."""

    argv: list[str] = Field(min_length=1)
    stdin: str = ""
    cwd: str | None = None
    env: dict[str, str] = Field(default_factory=dict)
    timeout: float = Field(default=60.0, gt=0)

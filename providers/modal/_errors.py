"""Maps exceptions of Modal's SDK to sandboxkit's errors; ANSWERS.md has the table."""

from google.protobuf.message import DecodeError  # type: ignore[import-untyped]  # no stubs
from grpclib import GRPCError, Status
from grpclib.exceptions import StreamTerminatedError
from h2.exceptions import ProtocolError
from modal import exception as modal
from modal_proto import api_pb2

from sandboxkit.errors import (
    AuthenticationError,
    CapacityError,
    ConfigurationError,
    ImageNotFoundError,
    ProviderUnavailableError,
    SandboxError,
    SandboxNotFoundError,
    SandboxStartError,
    SandboxTerminatedError,
)
from sandboxkit.providers._error_rules import ErrorRule, Failure, apply_rules
from sandboxkit.providers._hosted.ambiguous import AmbiguousError

HANDLED: tuple[type[Exception], ...] = (
    modal.Error,
    GRPCError,
    StreamTerminatedError,
    ProtocolError,
    DecodeError,
    OSError,
    # "Cannot parse auth token": the SDK raises this for a response that is not Modal's.
    ValueError,
)
"""Exceptions of the SDK for failures of Modal or the network; `translate` accepts any of them."""

_RULES = (
    ErrorRule(
        (modal.AuthError,),
        AuthenticationError,
        "check MODAL_TOKEN_ID and MODAL_TOKEN_SECRET, or run `modal token new`",
    ),
    ErrorRule((modal.PermissionDeniedError,), AuthenticationError),
    # For a full quota Modal sends no retry time.
    ErrorRule((modal.ResourceExhaustedError,), CapacityError, needed={"start", "no retry time"}),
    ErrorRule((modal.ResourceExhaustedError,), ProviderUnavailableError),
    # Modal's build machine went away; the image is not the cause.
    ErrorRule(
        (modal.ImageBuildError,),
        ProviderUnavailableError,
        "try again",
        "external shut-down|timed out",
    ),
    ErrorRule(
        (modal.ImageBuildError,),
        ImageNotFoundError,
        pattern="not found|does not exist|manifest unknown|failed to resolve|denied",
    ),
    ErrorRule((modal.ImageBuildError,), SandboxStartError),
    ErrorRule((modal.SandboxTerminatedError, modal.SandboxTimeoutError), SandboxTerminatedError),
    ErrorRule((modal.NotFoundError,), SandboxNotFoundError, needed={"sandbox"}),
    ErrorRule((modal.ConflictError,), AmbiguousError, needed={Status.ABORTED}),
    ErrorRule((modal.ConflictError,), SandboxNotFoundError, needed={"sandbox"}),
    ErrorRule((modal.InvalidError, modal.RequestSizeError), ConfigurationError),
    ErrorRule(
        (modal.VersionError, modal.UnimplementedError),
        ConfigurationError,
        "install another version of modal",
    ),
    ErrorRule((modal.NotFoundError,), ImageNotFoundError, pattern="^Image", needed={"start"}),
    ErrorRule((modal.NotFoundError, modal.RemoteError), SandboxStartError, needed={"start"}),
    ErrorRule((modal.NotFoundError,), ConfigurationError, "check SANDBOXKIT_MODAL_APP"),
    # AlreadyExistsError as well: the SDK retries a creation, of the same name, after a lost response.
    ErrorRule((), AmbiguousError),
)
"""The errors for the SDK's exceptions. "start" is what a call does."""


def translate(error: Exception, what: str, sandbox_id: str | None = None) -> SandboxError:
    """Return sandboxkit's error for a failed call; `what` completes "Modal cannot ..."."""
    reason = str(error).strip() or type(error).__name__
    if isinstance(error, modal.ClientClosed):  # its text is a number
        reason = "another call closed the connection"
    wait = _retry_after(error)
    codes = {*type(error).__mro__, _status(error), what.partition(" ")[0]}
    if wait is None:
        codes.add("no retry time")
    text = f"Modal cannot {what}: {reason}"
    return apply_rules(Failure(text, reason, codes, sandbox_id, wait), _RULES)


def _retry_after(error: Exception) -> float | None:
    # Set if Modal sent a retry time; the SDK itself then waits, unless told not to.
    for detail in getattr(error, "_grpc_details", None) or ():
        if isinstance(detail, api_pb2.RPCRetryPolicy):
            return detail.retry_after_secs
    return None


def _status(error: Exception) -> Status | None:
    # None if Modal did not respond. The public attribute emits a warning when it is read.
    return getattr(error, "_grpc_status", None)

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
from sandboxkit.providers._hosted.ambiguous import AmbiguousError

__all__ = ["HANDLED", "translate"]

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

# Messages of registries about a missing image.
_NO_IMAGE = ("not found", "does not exist", "manifest unknown", "failed to resolve", "denied")
# Build failures that the image does not cause: Modal's build machine went away.
_BUILD_ENDED = ("external shut-down", "timed out")


def translate(error: Exception, what: str, sandbox_id: str | None = None) -> SandboxError:
    """Return sandboxkit's error for a failed call; `what` completes "Modal cannot ..."."""
    said = str(error).strip() or type(error).__name__
    message = f"Modal cannot {what}: {said}"
    starting = what.startswith("start")

    def made(kind: type[SandboxError], text: str = message) -> SandboxError:
        return kind(text, provider="modal", sandbox_id=sandbox_id)

    match error:
        case modal.AuthError():
            remedy = "check MODAL_TOKEN_ID and MODAL_TOKEN_SECRET, or run `modal token new`"
            return made(AuthenticationError, f"{message}; {remedy}")
        case modal.PermissionDeniedError():
            return made(AuthenticationError)
        case modal.ResourceExhaustedError():
            wait = _retry_after(error)
            if starting and wait is None:  # for a full quota Modal sends no retry time
                return made(CapacityError)
            return ProviderUnavailableError(
                message, provider="modal", sandbox_id=sandbox_id, retry_after=wait
            )
        case modal.ImageBuildError() if any(words in said.lower() for words in _BUILD_ENDED):
            return made(ProviderUnavailableError, f"{message}; try again")
        case modal.ImageBuildError():
            missing = any(words in said.lower() for words in _NO_IMAGE)
            return made(ImageNotFoundError if missing else SandboxStartError)
        case modal.SandboxTerminatedError() | modal.SandboxTimeoutError():
            return made(SandboxTerminatedError)
        case modal.NotFoundError() if sandbox_id is not None:
            text = f"no sandbox {sandbox_id!r}; it may have ended"
            return made(SandboxNotFoundError, text)
        case modal.ConflictError() if _status(error) is Status.ABORTED:
            return made(AmbiguousError)
        case modal.ConflictError() if sandbox_id is not None:
            return made(SandboxNotFoundError, f"sandbox {sandbox_id!r} has ended: {said}")
        case modal.InvalidError() | modal.RequestSizeError():
            return made(ConfigurationError)
        case modal.VersionError() | modal.UnimplementedError():
            return made(ConfigurationError, f"{message}; install another version of modal")
        case modal.NotFoundError() if starting and said.startswith("Image"):
            return made(ImageNotFoundError)
        case modal.NotFoundError() | modal.RemoteError() if starting:
            return made(SandboxStartError)
        case modal.NotFoundError():
            return made(ConfigurationError, f"{message}; check SANDBOXKIT_MODAL_APP")
    # AlreadyExistsError as well: the SDK retries a creation, of the same name, after a lost response.
    return made(AmbiguousError)


def _retry_after(error: modal.ResourceExhaustedError) -> float | None:
    # Set if Modal sent a retry time; the SDK itself then waits, unless told not to.
    for detail in getattr(error, "_grpc_details", None) or ():
        if isinstance(detail, api_pb2.RPCRetryPolicy):
            return detail.retry_after_secs
    return None


def _status(error: Exception) -> Status | None:
    # None if Modal did not respond. The public attribute emits a warning when it is read.
    return getattr(error, "_grpc_status", None)

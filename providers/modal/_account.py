"""A connection to Modal: the SDK's client, our app, built images, and the errors for failed calls.

ANSWERS.md has the table of errors.
"""

import time
from collections import defaultdict
from collections.abc import Awaitable, Callable
from typing import ClassVar, TypeVar

import anyio
import modal
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]  # no stubs
from grpclib import GRPCError, Status
from grpclib.exceptions import StreamTerminatedError
from h2.exceptions import ProtocolError
from modal import exception
from modal.config import config
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
from sandboxkit.providers._hosted.account import VendorAccount
from sandboxkit.providers._hosted.ambiguous import AmbiguousError, SilenceError

_MOST_SILENT = 4
"""How many connections that fell silent stay open for calls in flight; the oldest is closed first."""

T = TypeVar("T")

HANDLED: tuple[type[Exception], ...] = (
    exception.Error,
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
        (exception.AuthError,),
        AuthenticationError,
        "check MODAL_TOKEN_ID and MODAL_TOKEN_SECRET, or run `modal token new`",
    ),
    ErrorRule((exception.PermissionDeniedError,), AuthenticationError),
    # For a full quota Modal sends no retry time.
    ErrorRule(
        (exception.ResourceExhaustedError,), CapacityError, needed={"start", "no retry time"}
    ),
    ErrorRule((exception.ResourceExhaustedError,), ProviderUnavailableError),
    # Modal's build machine went away; the image is not the cause.
    ErrorRule(
        (exception.ImageBuildError,),
        ProviderUnavailableError,
        "try again",
        "external shut-down|timed out",
    ),
    ErrorRule(
        (exception.ImageBuildError,),
        ImageNotFoundError,
        pattern="not found|does not exist|manifest unknown|failed to resolve|denied",
    ),
    ErrorRule((exception.ImageBuildError,), SandboxStartError),
    ErrorRule(
        (exception.SandboxTerminatedError, exception.SandboxTimeoutError), SandboxTerminatedError
    ),
    ErrorRule((exception.NotFoundError,), SandboxNotFoundError, needed={"sandbox"}),
    ErrorRule((exception.ConflictError,), AmbiguousError, needed={Status.ABORTED}),
    ErrorRule((exception.ConflictError,), SandboxNotFoundError, needed={"sandbox"}),
    ErrorRule((exception.InvalidError, exception.RequestSizeError), ConfigurationError),
    ErrorRule(
        (exception.VersionError, exception.UnimplementedError),
        ConfigurationError,
        "install another version of modal",
    ),
    ErrorRule((exception.NotFoundError,), ImageNotFoundError, pattern="^Image", needed={"start"}),
    ErrorRule(
        (exception.NotFoundError, exception.RemoteError), SandboxStartError, needed={"start"}
    ),
    ErrorRule((exception.NotFoundError,), ConfigurationError, "check SANDBOXKIT_MODAL_APP"),
    # AlreadyExistsError as well: the SDK retries a creation, of the same name, after a lost response.
    ErrorRule((), AmbiguousError),
)
"""The errors for the SDK's exceptions. "start" is what a call does."""


class ModalAccount(VendorAccount):
    """Connects at the first call. The SDK runs its own event loop in its own thread."""

    name: ClassVar = "modal"
    addresses: ClassVar = "MODAL_SERVER_URL"
    refusals: ClassVar = HANDLED

    def __init__(self, *, app: str, timeout: float, build_timeout: float) -> None:
        super().__init__(timeout)
        self._app_name, self._build_timeout = app, build_timeout
        self._client: modal.Client | None = None
        self._silent: list[modal.Client] = []
        self._replaced = float("-inf")
        self.connection = 0
        """The number of the connection in use; another one means that handles made before may be silent."""
        self._app: modal.App | None = None
        self._images: dict[str, modal.Image] = {}
        self._connecting = anyio.Lock()
        self._building: defaultdict[str, anyio.Lock] = defaultdict(anyio.Lock)

    async def client(self) -> modal.Client:
        """Return an SDK client of our own, so that closing it does not affect the user's client."""
        async with self._connecting:
            if self._client is not None:
                return self._client
            token_id, token_secret = _credentials()
            # Shielded: when cancelled here, the SDK would leave a connection open.
            with anyio.CancelScope(shield=True):
                self._client = await self.call(
                    lambda: modal.Client.from_credentials.aio(token_id, token_secret),
                    what=f"open a connection to {config['server_url']}",
                    seconds=self.timeout,
                )
            assert self._client is not None
            return self._client

    async def app(self) -> modal.App:
        """Return the app that our sandboxes belong to; it is created if missing."""
        client = await self.client()
        async with self._connecting:
            if self._app is not None:
                return self._app
            self._app = app = await self.call(
                lambda: modal.App.lookup.aio(self._app_name, client=client, create_if_missing=True),
                what=f"open the app {self._app_name!r}",
                seconds=self.timeout,
            )
            return app

    async def image(self, reference: str) -> modal.Image:
        """Return a built image; `reference` is a registry reference or a Modal image id ("im-...")."""
        app = await self.app()
        client = await self.client()
        async with self._building[reference]:
            if reference not in self._images:
                self._images[reference] = await self.call(
                    lambda: (
                        modal.Image.from_id(reference, client=client)
                        if reference.startswith("im-")
                        else modal.Image.from_registry(reference)
                    ).build.aio(app),
                    what=f"start a sandbox from image {reference!r}",
                    seconds=self._build_timeout,
                )
            return self._images[reference]

    def forget(self, reference: str) -> None:
        """Drop an image from the cache, so that its next use builds or looks it up again."""
        self._images.pop(reference, None)
        self._building.pop(reference, None)

    def identity(self) -> str:
        """Return a string that identifies the account. Raises ConfigurationError without credentials."""
        return " ".join((str(config["server_url"]), str(config["environment"]), *_credentials()))

    async def call(
        self,
        function: Callable[[], Awaitable[T]],
        *,
        what: str,
        sandbox_id: str | None = None,
        seconds: float | None = None,
    ) -> T:
        """Make a call as `bounded` does; `what` completes "Modal cannot ...".

        The SDK itself retries transient failures, so there is no retry here.
        """
        used = self._client
        try:
            return await self.bounded(function(), what=what, sandbox_id=sandbox_id, seconds=seconds)
        except SilenceError:
            await self._replace(used)
            raise

    def refused(self, error: Exception, what: str, sandbox_id: str | None) -> SandboxError:
        reason = str(error).strip() or type(error).__name__
        if isinstance(error, exception.ClientClosed):  # its text is a number
            reason = "another call closed the connection"
        wait = _retry_after(error)
        codes = {*type(error).__mro__, _status(error), what.partition(" ")[0]}
        if wait is None:
            codes.add("no retry time")
        text = f"Modal cannot {what}: {reason}"
        return apply_rules(Failure(text, reason, codes, sandbox_id, wait), _RULES)

    async def _replace(self, client: modal.Client | None) -> None:
        """Let the next call open another connection; the SDK gives up a stalled one after 40 s only.

        A call over the handle of an earlier connection may be the silent one, so this happens at most
        once in the time limit of a call.
        """
        now = time.monotonic()
        if client is None or client is not self._client or now < self._replaced + self.silence:
            return
        self.connection += 1
        self._silent.append(client)
        self._client, self._app, self._replaced = None, None, now
        self._images.clear()
        if len(self._silent) > _MOST_SILENT:
            await self._close(self._silent.pop(0))

    async def _close(self, client: modal.Client) -> None:
        with anyio.move_on_after(self.silence):
            await client.close.aio()

    async def aclose(self) -> None:
        """Close the connections; the next call opens a new one."""
        clients = [*self._silent, *([self._client] if self._client is not None else [])]
        self._client = self._app = None
        self._silent.clear()
        self._images.clear()
        for client in clients:
            await self._close(client)


def _credentials() -> tuple[str, str]:
    """Return the token's id and secret, from the environment or Modal's configuration file."""
    url = str(config["server_url"])
    if not url.startswith(("https://", "http://")):
        raise ConfigurationError(f"MODAL_SERVER_URL={url!r} is not a URL; unset it")
    found = []
    for name, prefix in (("token_id", "ak-"), ("token_secret", "as-")):
        value = str(config[name] or "")
        variable = f"MODAL_{name.upper()}"
        if not value:
            raise ConfigurationError(
                f"{variable} is not set: `modal token new` makes a token, or set MODAL_TOKEN_ID "
                "and MODAL_TOKEN_SECRET"
            )
        if not value.startswith(prefix) or not value.isascii() or not value.isprintable():
            raise ConfigurationError(
                f"{variable} is malformed: it begins with {prefix!r}; make a token with "
                "`modal token new`"
            )
        found.append(value)
    return found[0], found[1]


def _retry_after(error: Exception) -> float | None:
    # Set if Modal sent a retry time; the SDK itself then waits, unless told not to.
    for detail in getattr(error, "_grpc_details", None) or ():
        if isinstance(detail, api_pb2.RPCRetryPolicy):
            return detail.retry_after_secs
    return None


def _status(error: Exception) -> Status | None:
    # None if Modal did not respond. The public attribute emits a warning when it is read.
    return getattr(error, "_grpc_status", None)
